"""The figure of `cepheid measure speed`: seconds of a step by arm, and shares of a profile."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cepheid.measure.engine.study import OURS, REPORTED, Measured, Request, draw_figure
from cepheid.measure.engine.turns import find_middle_half
from cepheid.rules.errors import UserError

SHARE = "C4"


def draw_speed(path: Path, request: Request, measured: Measured) -> None:
    """Draw each measurement that has times or shares, side by side.

    Raises UserError where none has, and where the file cannot be written.
    """
    found = {name: facts for name, facts in measured.facts.items() if isinstance(facts, Mapping)}
    arms = {name: list_arms(facts) for name, facts in found.items()}
    shares = {name: facts["shares"] for name, facts in found.items() if "kernels" in facts}
    arms = {name: of_arms for name, of_arms in arms.items() if of_arms}
    if not arms and not shares:
        raise UserError("--figure: none of these measurements has times to draw; leave it out")
    definition = request.definition
    with draw_figure(path, columns=len(arms) + len(shares)) as (figure, axes):
        for each, (name, of_arms) in zip(axes, arms.items(), strict=False):
            _draw_arms(each, name, of_arms)
        for each, (name, of_phases) in zip(axes[len(arms) :], shares.items(), strict=True):
            places = range(len(of_phases))
            each.barh(places, [100 * share for share in of_phases.values()], color=SHARE)
            each.set_yticks(places, list(of_phases))
            each.invert_yaxis()
            each.set(title=name, xlabel="% of a profiled step")
        count = request.ranks.world_size if request.ranks else measured.facts["ranks"]
        ranks = f"{count} rank{'s' if count > 1 else ''}"
        figure.suptitle(f"{definition.name}, {definition.scale} scale, {ranks}")


def list_arms(facts: Mapping[str, Any]) -> Mapping[str, Sequence[float]]:
    """Return the seconds of each arm of a measurement, turn by turn; empty where it has none."""
    sides = [facts.get("baseline"), facts.get("reference")]
    if all(isinstance(side, Mapping) for side in sides):
        return {side["label"]: side["seconds"] for side in sides if side}
    return {
        name: each["seconds"]
        for name, each in facts.items()
        if isinstance(each, Mapping) and isinstance(each.get("seconds"), list | tuple)
    }


def _draw_arms(axes: Any, name: str, arms: Mapping[str, Sequence[float]]) -> None:
    places = range(len(arms))
    middles = [1000 * statistics.median(seconds) for seconds in arms.values()]
    ends = [[1000 * end for end in find_middle_half(seconds)] for seconds in arms.values()]
    spread = [
        [max(0.0, middle - low) for middle, (low, _) in zip(middles, ends, strict=True)],
        [max(0.0, high - middle) for middle, (_, high) in zip(middles, ends, strict=True)],
    ]
    axes.barh(places, middles, xerr=spread, color=OURS, ecolor=REPORTED, capsize=3)
    axes.set_yticks(places, list(arms))
    axes.invert_yaxis()
    axes.set(title=name, xlabel="ms of a step: medians, middle half")
