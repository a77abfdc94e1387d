"""What lies under a path: a run log, a result, a submitter's folder or a collection of those.

Only paths are listed: each log is opened once, by whoever judges its result. The checks S1, S2 and
S5 turn what was listed or refused into findings.
"""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from cepheid.compliance.finding import escape
from cepheid.compliance.read.contents import Submitter, is_like_log
from cepheid.compliance.read.decisions import Decisions
from cepheid.compliance.read.folders import Reader
from cepheid.compliance.read.layout import SUBMISSIONS, find_strays
from cepheid.compliance.read.mlperf_folders import PRUNED, MlperfReader
from cepheid.rules.errors import UserError
from cepheid.rules.rounds import Layout


@dataclass(frozen=True)
class Package:
    """What lies under a given path: one log, or the folders of submitters.

    ``strays`` lie beside the folders of submitters and belong to none of them.
    """

    path: Path
    submitters: tuple[Submitter, ...]
    is_single_log: bool = False
    strays: tuple[Path, ...] = ()

    @property
    def decisions(self) -> Decisions | None:
        """What the organisers decided about the submitters."""
        return next(filter(None, (who.decisions for who in self.submitters)), None)

    @property
    def logs(self) -> int:
        """The number of run logs."""
        return sum(len(result.runs) for who in self.submitters for result in who.results)


def read(
    path: Path,
    layout: Layout = "cepheid",
    may_be_empty: bool = False,
    with_systems: bool = True,
) -> Package:
    """List what lies under ``path``; ``layout`` is that of the round's folders.

    Raises UserError where there is nothing, nothing that looks like run logs, or something that can
    be read in two ways. ``may_be_empty`` accepts a folder named ``submissions`` in which there is
    no submission yet. Without ``with_systems``, the description around a log of MLPerf is not read:
    only tables show it, a log by itself is judged without it.
    """
    try:
        is_folder = stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise UserError(f"{path}: there is no such file or folder") from None
    except OSError as error:  # no permission, or no name that the system takes
        raise UserError(f"{escape(str(path))[:200]}: {error.strerror}") from error
    absolute = Path(os.path.abspath(path))
    reader = _make_reader(absolute, layout, path.is_absolute())
    reader.with_systems = with_systems
    if not is_folder:
        return Package(path, (reader.read_single_log(absolute),), is_single_log=True)
    strays = tuple(map(reader.show, find_strays(absolute))) if layout == "cepheid" else ()
    package = Package(path, tuple(reader.find_submitters(absolute)), strays=strays)
    has_finding = any(who.refused or who.in_submission for who in package.submitters)
    if package.logs == 0 and not (has_finding and layout == "cepheid"):
        advice = _explain_unread_logs(path, package)
        if may_be_empty and absolute.name == SUBMISSIONS and not advice:
            return Package(path, (), strays=strays)
        raise UserError(advice or _explain_missing_logs(path))
    return package


def find_around_log(path: Path, layout: Layout = "cepheid") -> Submitter:
    """Find the folder around a run log, with that log alone.

    Neither needs to exist yet, and nothing is raised.
    """
    absolute = Path(os.path.abspath(path))
    return _make_reader(absolute, layout, path.is_absolute()).read_single_log(absolute)


def _make_reader(absolute: Path, layout: Layout, keep_absolute: bool) -> Reader:
    reader_of = {"cepheid": Reader, "mlperf": MlperfReader}[layout]
    return reader_of(absolute, keep_absolute)


def _explain_unread_logs(path: Path, package: Package) -> str:
    """Say what to do about logs that cannot be read yet, or return an empty text."""
    results = [result for who in package.submitters for result in who.results]
    unfinished = sum(len(result.unfinished) for result in results)
    if unfinished:
        return f"{path}: no run has ended yet; {unfinished} still running or killed; wait for it"
    for entry in (entry for result in results for entry in result.unexpected):
        if is_like_log(entry):
            name = escape(entry.name)
            return f"{path}: no run logs named result_0.txt …, but {name}; rename it"
    return ""


def _explain_missing_logs(path: Path) -> str:
    pruned = next(path.rglob(PRUNED), None) if path.is_dir() else None
    if pruned:
        return f"{path}: no result here, only {pruned}: logs that weak scaling sets aside"
    if packed := next(path.rglob("result_*.gz"), None):
        return f"{path}: no run logs named result_0.txt …, but {escape(packed.name)}; unpack it"
    return (
        f"{path}: no run logs here; give a log, a folder with result_0.txt …, or the folder "
        "that `cepheid run --output` wrote, with results/ in it"
    )
