"""The figures of `cepheid measure costs`. matplotlib draws."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reference.measure.costs import Costs
from reference.measure.figures.drawing import draw_figure
from rules.errors import UserError

COLOURS = {
    "data": "#b8b8b8",
    "forward": "#3a86d1",
    "backward": "#1b4f8a",
    "factors": "#e0a030",
    "communication": "#7a52a8",
    "inverse": "#c8452f",
    "update": "#4f9d5d",
    "other": "#dddddd",
}
RANKS_SHOWN = 8


def write(folder: Path, asked: Costs, found: Mapping[str, Any]) -> Sequence[Path]:
    """Draw the ledger of each step and the balance of the inverses; each file appears in one step.

    Raises UserError where it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--figures {folder}: cannot make it ({error.strerror})") from error
    return [
        _ledger(folder / "ledger.png", asked, found),
        _balance(folder / "balance.png", found),
    ]


def _ledger(path: Path, asked: Costs, found: Mapping[str, Any]) -> Path:
    """Figures 2 to 4: what an update is made of, step after step."""
    bars = [(found["baseline"]["name"], found["baseline"]["phases_ms"][0])]
    bars += [(update["name"], update["phases_ms"][0]) for update in found["updates"]]
    with draw_figure(path, columns=2) as (figure, (left, right)):
        for place, (_, phases) in enumerate(bars):
            below = 0.0
            for phase, colour in COLOURS.items():
                height = max(0.0, phases.get(phase, 0.0))
                left.bar(place, height, bottom=below, color=colour, label="" if place else phase)
                below += height
        left.set_xticks(range(len(bars)), [name for name, _ in bars], rotation=30, ha="right")
        left.set_ylabel("ms of an update")
        left.set_title(f"measured: {found['scale']} scale, {found['ranks']} rank(s)")
        left.legend(fontsize=7)
        reported = [step for step in (asked.baseline, *asked.steps) if step.published_ms]
        right.bar(range(len(reported)), [step.published_ms for step in reported], color="#8a8a8a")
        names = [step.name for step in reported]
        right.set_xticks(range(len(reported)), names, rotation=30, ha="right")
        right.set_title("as reported: totals of table 1")
        figure.suptitle(f"{asked.title} ({asked.source})", fontsize=9)
    return path


def _balance(path: Path, found: Mapping[str, Any]) -> Path:
    """Figure 5: the inverses of each rank, and of the busiest by number of ranks."""
    with draw_figure(path, columns=2) as (_, (left, right)):
        row = next(row for row in found["balance"] if row["ranks"] == RANKS_SHOWN)
        left.bar(range(RANKS_SHOWN), row["milliseconds"], color=COLOURS["inverse"])
        left.set_xlabel("rank")
        left.set_ylabel("ms of inverses")
        left.set_title(f"projected to {RANKS_SHOWN} ranks from each layer's measured time")
        counts = [row["ranks"] for row in found["balance"]]
        busiest = [max(row["milliseconds"]) for row in found["balance"]]
        right.plot(counts, busiest, "o-", color=COLOURS["inverse"], label="busiest rank")
        ideal = [busiest[0] / count for count in counts]
        right.plot(counts, ideal, "--", color="#8a8a8a", label="evenly shared")
        right.set_xscale("log", base=2)
        right.set_yscale("log")
        right.set_xlabel("ranks")
        right.legend(fontsize=8)
        right.set_title("busiest rank")
    return path
