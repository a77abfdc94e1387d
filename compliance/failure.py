"""Failures of ours: what raises while one result is judged is an error of that result alone (S15).

Each place that works on what one submission holds does it within ``Failures.caught`` or through
``isolate``. The traceback goes to stderr, because it is our bug. An exception that concerns no
result, such as a full disk or wrong use, is raised as everywhere.
"""

import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from cepheid.compliance.finding import Finding, breach, escape
from cepheid.rules.errors import UserError, explain_system_error
from cepheid.rules.host import ROOT

NOT_JUDGED = "S15.not_judged"

Result = TypeVar("Result")
Item = TypeVar("Item")


class Failures:
    """The failures while one result, or the folder around the results, is judged.

    Only the traceback of the first is printed: a bug that shows in one log shows in most of them.
    """

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def caught(self, path: Path) -> "_Caught":
        """Make a finding about ``path`` of what the block raises, unless it concerns no result."""
        return _Caught(self, path)


class _Caught:
    """What ``Failures.caught`` returns. Each log is judged within nine: they must cost little."""

    def __init__(self, failures: Failures, path: Path) -> None:
        self._failures, self._path = failures, path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception) or concerns_no_result(error):
            return False
        found = self._failures.findings
        found.append((describe_failure if found else report_failure)(self._path, error))
        return True


def isolate(
    items: Sequence[Item],
    make: Callable[[Sequence[Item]], Result],
    strip: Callable[[Item, Exception], Item],
    rehearse: Callable[[Sequence[Item]], object] | None = None,
) -> tuple[Result, list[Item]]:
    """Make something of many items at once; return it, and the items that it was made of.

    Where that raises, ``strip`` replaces the item that it raises with, and it is made again. That
    item is the last one of the fewest first items that ``rehearse`` (``make``, unless something
    else does the same without an effect) raises with. Raises what it raises without any item, with
    an item that was stripped before, and what concerns no result.
    """
    items, stripped = list(items), set[int]()
    while True:
        try:
            return make(items), items
        except Exception as error:
            raised = error  # handled below, so that no traceback of it begins others
        if concerns_no_result(raised):
            raise raised
        number, cause = _find_cause(items, rehearse or make, raised)
        if number in stripped:
            raise cause
        stripped.add(number)
        items[number] = strip(items[number], cause)


def _find_cause(
    items: Sequence[Item], rehearse: Callable[[Sequence[Item]], object], error: Exception
) -> tuple[int, Exception]:
    """Find by halving an item that it raises with, although it does not with those before it."""
    if not items or _find_error(rehearse, items[:0]):
        raise error
    works, fails = 0, len(items)
    while fails - works > 1:
        middle = (works + fails) // 2
        earlier = _find_error(rehearse, items[:middle])
        works, fails, error = (
            (middle, fails, error) if earlier is None else (works, middle, earlier)
        )
    return fails - 1, error


def _find_error(
    rehearse: Callable[[Sequence[Item]], object], items: Sequence[Item]
) -> Exception | None:
    try:
        rehearse(items)
    except Exception as error:
        return error
    return None


def concerns_no_result(error: Exception) -> bool:
    """Return True for wrong use, and for what the system or the installation refuses."""
    return isinstance(error, UserError | ImportError) or bool(explain_system_error(error))


def describe_failure(path: Path, error: Exception) -> Finding:
    """Return the finding for an exception while ``path`` was judged."""
    return breach(path, None, NOT_JUDGED, error=type(error).__name__, place=_find_place(error))


def report_failure(path: Path, error: Exception) -> Finding:
    """Print the traceback, and return the finding.

    What the traceback quotes of a submission is escaped, so that it cannot control a terminal.
    """
    lines = "".join(traceback.format_exception(error)).split("\n")
    title = f"cepheid: {path} could not be judged, which is our bug:"
    print("\n".join(map(escape, [title, *lines])), file=sys.stderr, flush=True)
    return describe_failure(path, error)


def _find_place(error: Exception) -> str:
    """Return the last line of our own code that the exception came through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if Path(frame.filename).resolve().is_relative_to(ROOT)]
    if not ours:
        return "unknown code"
    return f"{Path(ours[-1].filename).resolve().relative_to(ROOT).as_posix()}:{ours[-1].lineno}"
