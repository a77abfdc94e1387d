"""Walks through folders of logs in the layout of our rounds.

Everything that was left out is in ``refused`` with the reason. Links are never followed, since a
submission must not be able to show a file that is not in it. Only the paths of logs are listed
here; each log is opened later, once, by whoever judges its result.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from cepheid.compliance.failure import Failures
from cepheid.compliance.finding import escape
from cepheid.compliance.read import decisions, layout, manifest
from cepheid.compliance.read.carried import list_carriers
from cepheid.compliance.read.contents import (
    CONFIGURATION,
    LEFT_BY_TOOLS,
    LOG_NAME,
    OLD_WAIVERS,
    README,
    Carrier,
    Flaw,
    Refused,
    ResultFolder,
    SubmittedFile,
    Submitter,
    SystemFile,
)
from cepheid.compliance.read.log.records import FILE_BYTES_MAX as DIGESTED_BYTES_MAX
from cepheid.compliance.read.powerlog import FILE_BYTES_MAX as POWER_BYTES_MAX
from cepheid.compliance.read.powerlog import POWER_NAME
from cepheid.compliance.read.texts import list_flaws
from cepheid.rules import digests
from cepheid.rules.errors import UserError

ENTRIES_MAX = 10_000  # in one folder
LOGS_MAX = 100  # of one result
DESCRIPTION_BYTES_MAX = 2**20
FILES_MAX = 100_000  # of one submission
DEPTH_MAX = 16  # folders within each other in a submission

_INTERRUPTED_NAME = re.compile(r"interrupted_.*\.txt", re.DOTALL)
_PARTIAL_NAME = re.compile(r"result_[0-9]+(\.txt)?\.partial")
_ATTACHED_NAME = re.compile(r"report_[0-9]+\.json|pictures_[0-9]+\.png")


class Reader:
    """Walks through folders without following links; ``refused`` collects what was left out."""

    log_name = LOG_NAME
    logs_max = LOGS_MAX
    may_repeat = False  # whether a key of a description may be there twice

    def __init__(self, given: Path, keep_absolute: bool) -> None:
        self.given = given
        self.keep_absolute = keep_absolute
        self.with_systems = True  # read the descriptions around a log of MLPerf
        self.refused: list[Refused] = []
        self.failures = Failures()
        self.decided: dict[Path, decisions.Decisions] = {}

    def show(self, path: Path) -> Path:
        """Return the path as the user would write it: relative if the given path was."""
        return path if self.keep_absolute else Path(os.path.relpath(path))

    def find_submitters(self, folder: Path) -> Iterator[Submitter]:
        """Yield the submitter's folders that ``folder`` is, holds, or is a part of."""
        match layout.find_layout(folder):
            case layout.Layout.RESULT:
                yield self.read_around_result(folder)
            case layout.Layout.SUBMITTER:
                yield self.read_submitter(folder)
            case layout.Layout.RESULTS:
                yield self.read_submitter(folder.parent)
            case layout.Layout.SYSTEM:
                yield self.read_submitter(folder.parent.parent, only_system=folder.name)
            case layout.Layout.SUBMISSIONS:
                yield from self.read_collection(folder)

    def read_collection(self, folder: Path) -> Iterator[Submitter]:
        """Yield the submitters in a folder of submitters, or the result that the folder may be.

        Raises UserError if another submitter's folder lies deeper, where nobody would look for it.
        """
        read = set()
        is_submissions = folder.name == layout.SUBMISSIONS
        for entry in self.list_entries(folder, quiet=is_submissions):
            inside = folder / entry.name
            if not entry.is_dir(follow_symlinks=False):
                continue
            names = {inner.name for inner in self.list_entries(inside, quiet=True)}
            if names & layout.PARTS or is_submissions:
                read.add(entry.name)
                yield self.read_submitter(inside)
        if not read:
            yield self.read_around_result(folder)  # perhaps a result whose logs are misnamed
            return
        lost = layout.find_lost(folder, frozenset(read))
        if lost:
            raise UserError(
                f"{escape(str(self.show(lost)))}: lies deeper than the other submitters' folders "
                f"in {escape(str(self.show(folder)))}; fix: move it up, or check it by itself"
            )

    def read_submitter(self, root: Path, only_system: str | None = None) -> Submitter:
        """Read a submitter's folder, or the results of one of its systems."""
        results = []
        for system in self.list_folders(root / "results"):
            if only_system in (None, system.name):
                for folder in self.list_folders(system):
                    result = ResultFolder(self.show(folder), system.name, ())
                    with self.caught(folder):
                        result = self.list_result(folder, system.name)
                    results.append(result)
        names = [entry.name for entry in self.list_entries(root, quiet=True)]
        left_by_tools = tuple(self.show(root / name) for name in names if name in LEFT_BY_TOOLS)
        is_listed = self.is_submission(root) and not only_system
        files = tuple[SubmittedFile, ...]()
        if is_listed:
            with self.caught(root):
                files = tuple(self.list_files(root, _list_hashed_later(results)))
        systems, bound, flaws = self.read_systems(root), None, tuple[Flaw, ...]()
        carriers = tuple[Carrier, ...]()
        if is_listed and is_plain_file(root / manifest.FILE_NAME):
            with self.caught(root):
                bound = manifest.read(self.show(root / manifest.FILE_NAME))
        with self.caught(root):
            flaws = tuple(list_flaws(root, files))
            carriers = tuple(list_carriers(root, files))
        return replace(
            self.make_submitter(root, systems, results),
            left_by_tools=left_by_tools,
            is_whole=only_system is None,
            files=files if is_listed else None,
            manifest=bound,
            carriers=carriers,
            flaws=flaws,
        )

    def caught(self, path: Path) -> AbstractContextManager[None]:
        """Make an error of the submitter of what the block raises while it reads a path."""
        return self.failures.caught(self.show(path))

    def is_submission(self, root: Path) -> bool:
        """Return True where the rules for packages hold: in submissions/, or with a manifest."""
        return root.parent.name == layout.SUBMISSIONS or (root / manifest.FILE_NAME).is_file()

    def list_files(self, root: Path, hashed_later: frozenset[str]) -> Iterator[SubmittedFile]:
        """List all files and folders of a submission within bounds, and record what is refused.

        Each has its digest, but for ``hashed_later``: the absolute paths of the logs, which are
        hashed when they are judged.
        """
        count, waiting = 0, [root]
        while waiting:
            folder = waiting.pop()
            is_deep = len(folder.relative_to(root).parts) >= DEPTH_MAX
            for entry in self.list_entries(folder):
                count += 1
                if count > FILES_MAX:
                    why = f"more than {FILES_MAX:,} files in one submission; the rest is not read"
                    self.refused.append(Refused(self.show(root), why))
                    return
                path, is_folder = folder / entry.name, entry.is_dir(follow_symlinks=False)
                status = entry.stat(follow_symlinks=False)
                size_bytes = 0 if is_folder else status.st_size
                name = PurePosixPath(path.relative_to(root))
                is_left = is_folder or self.leaves_to_judge(path, size_bytes, hashed_later)
                sha256 = "" if is_left else self.digest(path, size_bytes)
                yield SubmittedFile(name, size_bytes, is_folder, sha256, status.st_mode)
                if is_folder and is_deep:
                    why = f"folders deeper than {DEPTH_MAX}"
                    self.refused.append(Refused(self.show(path), why))
                elif is_folder:
                    waiting.append(path)

    def leaves_to_judge(self, path: Path, size_bytes: int, hashed_later: frozenset[str]) -> bool:
        """Return True for a log that is hashed when it is judged; refuse one without permission."""
        is_log = str(path) in hashed_later
        if is_log and not os.access(path, os.R_OK):
            why = f"cannot be read: {os.strerror(errno.EACCES)}"
            self.refused.append(Refused(self.show(path), why))
        return is_log and (path.suffix != ".csv" or size_bytes <= POWER_BYTES_MAX)

    def digest(self, path: Path, size_bytes: int) -> str:
        """Return the SHA-256 of a file within bounds, and record what is refused."""
        if size_bytes > DIGESTED_BYTES_MAX:  # S5 finds it too large anyway
            return ""
        try:
            return digests.digest_file(path)
        except OSError as error:
            why = f"cannot be read: {error.strerror}"
            self.refused.append(Refused(self.show(path), why))
            return ""

    def read_around_result(self, folder: Path, log: Path | None = None) -> Submitter:
        """Read one result, with its system's description where it lies in a submitter's folder.

        With a ``log``, the result has that log alone.
        """
        system = folder.parent.name if layout.is_in_layout(folder) else None
        alone = ResultFolder(self.show(folder), system, (self.show(log),)) if log else None
        result = alone or self.list_result(folder, system)
        if system is None:
            return self.make_submitter(folder, {}, [result])
        root = folder.parents[2]
        return self.make_submitter(root, self.read_systems(root, system), [result])

    def read_single_log(self, file: Path) -> Submitter:
        """Read what lies around one log, with that log alone."""
        return self.read_around_result(file.parent, file)

    def make_submitter(
        self, root: Path, systems: Mapping[str, SystemFile], results: list[ResultFolder]
    ) -> Submitter:
        """Put together what was read of a submitter's folder, and everything that was refused."""
        is_listed = root.parent.name == layout.SUBMISSIONS
        decided = None
        with self.caught(root):
            decided = self.read_decisions(root.parent) if is_listed else None
        old = root / OLD_WAIVERS
        refused, self.refused = tuple(dict.fromkeys(self.refused)), []
        failures, self.failures = tuple(self.failures.findings), Failures()
        return Submitter(
            path=self.show(root),
            name=root.name if is_listed else None,
            in_submission=self.is_submission(root),
            systems=MappingProxyType(dict(systems)),
            results=tuple(results),
            refused=refused,
            decisions=decided,
            old_waivers=self.show(old) if is_plain_file(old) else None,
            failures=failures,
        )

    def read_decisions(self, submissions: Path) -> decisions.Decisions | None:
        """Read what the organisers decided, once for all submitters."""
        path = submissions / decisions.FILE_NAME
        if path not in self.decided and is_plain_file(path):
            self.decided[path] = decisions.read(self.show(path))
        return self.decided.get(path)

    def list_result(self, folder: Path, system: str | None) -> ResultFolder:
        """List the logs of a folder in the order of their numbers, and what else lies there."""
        logs, unfinished, interrupted, unexpected, power, attached = [], [], [], [], [], []
        has_readme = False
        for entry in self.list_entries(folder):
            name, path = entry.name, self.show(folder / entry.name)
            if self.log_name.fullmatch(name) and entry.is_file(follow_symlinks=False):
                logs.append(path)
            elif _PARTIAL_NAME.fullmatch(name):
                unfinished.append(path)
            elif _INTERRUPTED_NAME.fullmatch(name) and entry.is_file(follow_symlinks=False):
                interrupted.append(path)
            elif POWER_NAME.fullmatch(name) and entry.is_file(follow_symlinks=False):
                power.append(path)
            elif name == README and entry.is_file(follow_symlinks=False):
                has_readme = entry.stat(follow_symlinks=False).st_size > 0
            elif _ATTACHED_NAME.fullmatch(name) and entry.is_file(follow_symlinks=False):
                attached.append(path)
            elif name != CONFIGURATION and not name.startswith("."):
                unexpected.append(path)
        most = self.logs_max
        if max(len(logs), len(interrupted), len(power)) > most:
            why = f"more than {most} run logs in one result; only the first ones are read"
            self.refused.append(Refused(self.show(folder), why))
        logs.sort(key=lambda path: (len(path.name), path.name))
        return ResultFolder(
            self.show(folder),
            system,
            tuple(logs[:most]),
            tuple(unfinished),
            tuple(interrupted[:most]),
            tuple(unexpected),
            tuple(power[:most]),
            has_readme,
            tuple(attached),
        )

    def read_systems(self, root: Path, only: str | None = None) -> dict[str, SystemFile]:
        """Read the system descriptions, by name."""
        systems = {}
        for entry in self.list_entries(root / "systems"):
            name = entry.name.removesuffix(".json")
            is_visible = not entry.name.startswith(".")
            is_description = (
                is_visible and name != entry.name and entry.is_file(follow_symlinks=False)
            )
            if is_description and only in (None, name):
                systems[name] = self.read_system(root / "systems" / entry.name)
        return systems

    def read_system(self, file: Path) -> SystemFile:
        """Read one system description."""
        path, name = self.show(file), file.name.removesuffix(".json")
        with self.caught(path):
            return _read_description(path, name, self.may_repeat)
        return SystemFile(path, name, None, "cannot be read")

    def list_folders(self, folder: Path, quiet: bool = False) -> list[Path]:
        """List the folders in a folder; hidden ones are left out."""
        entries = self.list_entries(folder, quiet)
        names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        return [folder / name for name in names if not name.startswith(".")]

    def list_entries(self, folder: Path, quiet: bool = False) -> list[os.DirEntry[str]]:
        """List files and folders in the order of their names; links and devices are refused.

        A folder that does not exist has no entries. ``quiet`` records no refusals.
        """
        kept: list[os.DirEntry[str]] = []
        refused: list[Refused] = []
        if folder.is_symlink() and folder != self.given:  # the given path itself may be a link
            self.refused += [] if quiet else [Refused(self.show(folder), "a link")]
            return []
        try:
            with os.scandir(folder) as scanned:
                for entry in scanned:
                    why = _explain_refusal(entry)
                    if why:
                        refused.append(Refused(self.show(Path(entry.path)), why))
                    else:
                        kept.append(entry)
                    if len(kept) + len(refused) > ENTRIES_MAX:
                        why = f"more than {ENTRIES_MAX:,} files in one folder; the rest is not read"
                        refused.append(Refused(self.show(folder), why))
                        break
        except FileNotFoundError:
            return []
        except OSError as error:
            refused.append(Refused(self.show(folder), f"cannot be read: {error.strerror}"))
        if not quiet:
            self.refused += refused
        return sorted(kept, key=lambda entry: entry.name)


def is_plain_file(path: Path) -> bool:
    """Return True for a file that is no link."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (OSError, ValueError):  # also for a name that the system does not take
        return False


def _list_hashed_later(results: Sequence[ResultFolder]) -> frozenset[str]:
    """Return the absolute paths of all logs, which are hashed when they are judged."""
    logs = (path for one in results for path in (*one.runs, *one.interrupted, *one.power))
    return frozenset(map(os.path.abspath, logs))


def _explain_refusal(entry: os.DirEntry[str]) -> str:
    mode = entry.stat(follow_symlinks=False).st_mode
    if stat.S_ISLNK(mode):
        return "a link"
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        return "neither a file nor a folder"
    return ""


def _read_description(path: Path, name: str, may_repeat: bool) -> SystemFile:
    """Read a system description up to a bound; rules S2 and M4 judge its content."""
    content, problem = manifest.read_json(path, DESCRIPTION_BYTES_MAX)
    if problem and may_repeat:
        content, _ = manifest.read_json(path, DESCRIPTION_BYTES_MAX, may_repeat=True)
        if isinstance(content, dict):
            return SystemFile(path, name, MappingProxyType(content), problem)
    if isinstance(content, dict):
        return SystemFile(path, name, MappingProxyType(content))
    return SystemFile(path, name, None, problem or "is not a JSON object")
