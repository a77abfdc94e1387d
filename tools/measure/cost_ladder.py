"""What `cepheid measure costs --ladder` shows: what makes the baseline fast, step by step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cepheid.measure.studies.costs.costs import Setup
    from cepheid.reference.torch.distributed import TorchRanks


@dataclass(frozen=True)
class Shown:
    """A measurement for its reader: text, facts for the JSON file, and what draws its figures."""

    text: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    draw: Callable[[Path], Sequence[Path]] = lambda folder: ()


Show = Callable[[Sequence["Setup"], "TorchRanks", Callable[[str], None]], Shown]


def show_ladder(
    setups: Sequence["Setup"], ranks: "TorchRanks", say: Callable[[str], None]
) -> Shown:
    """Measure the ladder of the one setup."""
    from cepheid.measure.studies.costs.figure import draw_ladder
    from cepheid.measure.studies.costs.ladder import measure_ladder

    (setup,) = setups
    measured = measure_ladder(setup, ranks, say)
    ladder = setup.costs.require_ladder()
    where = (
        f"{measured.ranks} rank(s), {measured.global_batch_size} samples, "
        f"{measured.threads} thread(s)"
    )
    rows = [
        {
            "step": rung.name,
            "ms": f"{rung.milliseconds:,.1f}",
            "times as fast as the one before": _format(rung.speedup) if place else "",
            "as the first": _format(rung.speedup_in_all) if place else "",
            **{
                phase: f"{rung.phases_ms.get(phase, 0.0):,.1f}"
                for phase in ("forward", "backward", "update", "other")
            },
            "reported": next(each.reported for each in ladder.rungs if each.name == rung.name),
        }
        for place, rung in enumerate(measured.rungs)
    ]
    title = f"{ladder.title} ({where}; reported: {setup.costs.source}, {ladder.published_at})"
    left_out = [f"left out: {name}: {reason}" for name, reason in measured.left_out.items()]

    def draw(folder: Path) -> Sequence[Path]:
        phases = {rung.name: rung.phases_ms for rung in measured.rungs}
        speedups = {rung.name: rung.speedup_in_all for rung in measured.rungs}
        order = [*setup.parts.phases, "other"]
        headline = f"{ladder.title}: {setup.definition.name}"
        return [draw_ladder(folder / "ladder.png", headline, phases, speedups, order, where)]

    text = "\n\n".join([title, format_table(rows), *left_out])
    return Shown(text, measured.as_json(setup), draw)


def format_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a table for people; None is an empty cell."""
    from tabulate import tabulate

    cells = [{key: "" if value is None else value for key, value in row.items()} for row in rows]
    return tabulate(cells, headers="keys", disable_numparse=True)


def _format(speedup: tuple[float, float, float]) -> str:
    middle, low, high = speedup
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"
