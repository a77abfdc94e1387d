"""What the checker says of a log that a run has just closed."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from compliance import package
from compliance.checks import check_log
from compliance.judge import place_of
from rules import rounds

if TYPE_CHECKING:
    from rich.console import Console


def tell(log: Path, console: "Console") -> None:
    """Each error of a log, by the rules of `cepheid check`; nothing where there is none.

    What can be judged only beside the other runs of the result is not looked at.
    """
    judged_in = rounds.load()
    who = package.around_log(log)
    place = replace(place_of(who.results[0], who, judged_in), in_result=True)
    errors = [f for f in check_log(who.results[0].runs[0], place, judged_in) if f.is_error]
    if errors:
        console.print("this run cannot count, as its log says:")
    for finding in errors:
        console.print(finding.text(), markup=False)
