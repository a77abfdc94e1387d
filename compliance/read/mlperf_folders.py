"""Walks through folders of logs in the layout of the rounds of MLPerf."""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cepheid.compliance.read.contents import Refused, ResultFolder, Submitter, SystemFile
from cepheid.compliance.read.folders import ENTRIES_MAX, FILES_MAX, Reader, is_plain_file

PRUNED = "pruned_results"  # logs that weak scaling sets aside; they are no result
POWER = "power"  # beside the logs of a result: a folder of power logs for each of them
SCALES = ("strong", "weak")  # of HPC, between system and benchmark
PARAMETERS = "package_checker_params"  # names checks that review let pass, a line each
PARAMETERS_BYTES_MAX = 4096
FILE_BYTES_MAX = 50 * 2**20  # of any file of a repository (repo_checker.py)
SCALING = "scaling.json"  # beside logs that converge faster than the reference, since v2.1
FOLDERS_DEEP_MAX = 8  # how far below the given folder results are looked for


class MlperfReader(Reader):
    """Folders as the rounds of MLPerf have them.

    The given path may be a tree of submitters, one of them, a system, a result or a log.
    ``<submitter>/systems/<system>.json``, ``<submitter>/results/<system>/<benchmark>/`` and in HPC
    ``<submitter>/results/<system>/strong/<benchmark>/``. A result is a folder with logs in it.
    """

    log_name = re.compile(r"result_[^/]*\.txt")
    may_repeat = True  # mlcommons takes the last one
    logs_max = ENTRIES_MAX  # weak scaling trains hundreds of models at once

    def find_submitters(self, folder: Path) -> Iterator[Submitter]:
        """Yield the submitters of all results below a folder."""
        found: dict[Path, list[Path]] = {}
        for result in self.find_result_folders(folder, FOLDERS_DEEP_MAX):
            found.setdefault(self.find_root(result), []).append(result)
        for root, folders in found.items():
            results = [self.list_placed_result(folder) for folder in folders]
            who = self.make_submitter(root, self.find_descriptions(root, results), results)
            is_whole = root.is_relative_to(folder) and (root / "results").is_dir()
            unfit = tuple(self.find_unfit(root)) if is_whole else ()
            empty = tuple(self.find_without_logs(root)) if is_whole else ()
            yield replace(who, is_whole=is_whole, unfit=unfit, without_logs=empty)

    def read_single_log(self, file: Path) -> Submitter:
        """Read what lies around one log, with that log alone."""
        folder = file.parent
        root, shown, (system, scale) = self.find_root(folder), self.show(folder), self.place(folder)
        result = ResultFolder(shown, system, (self.show(file),), benchmark=folder.name, scale=scale)
        if not self.with_systems:
            return self.make_submitter(root, {}, [result])
        systems = root / "systems"
        described = systems / f"{system}.json"
        if is_plain_file(described) and not os.path.islink(systems):
            read = self.read_system(described)  # each log by itself reads no other one
            return self.make_submitter(root, {read.name: read}, [result])
        return self.make_submitter(root, self.find_descriptions(root, [result]), [result])

    def is_submission(self, root: Path) -> bool:
        """Return False: these rounds have no manifests."""
        return False

    def find_descriptions(self, root: Path, results: list[ResultFolder]) -> dict[str, SystemFile]:
        """Find the descriptions by the names of the folders, not always those of the files.

        Some agree only with ``system_name``, or in another case.
        """
        found = self.read_systems(root)
        by_other_name = {system.name.casefold(): system for system in found.values()}
        by_other_name |= {(system.text("system_name") or ""): system for system in found.values()}
        for name in {result.system for result in results if result.system} - found.keys():
            other = by_other_name.get(name) or by_other_name.get(name.casefold())
            if other is not None:
                found[name] = other
        return found

    def find_result_folders(self, folder: Path, deep: int) -> Iterator[Path]:
        """Yield every folder with run logs, below ``folder`` or itself."""
        if any(
            self.log_name.fullmatch(entry.name) for entry in self.list_entries(folder, quiet=True)
        ):
            yield folder
        folders = self.list_folders(folder, quiet=True) if deep else []
        inner = [path for path in folders if path.name not in (PRUNED, POWER)]
        results = [path for path in inner if path.name == "results"]
        # Beside results there may be much code, but no result, unless somebody is called results.
        is_submitter = results and not any((path / "results").is_dir() for path in inner)
        for path in results if is_submitter else inner:
            yield from self.find_result_folders(path, deep - 1)

    def list_placed_result(self, folder: Path) -> ResultFolder:
        """List the result in a folder, with what the folder's place says about it."""
        inside = self.find_names(folder)
        system, scale = self.place(folder)
        result = self.list_result(folder, None)
        above = folder.parents[len(inside) - 2] if len(inside) > 1 else folder  # of the system
        return replace(
            result,
            power_of=self.list_power(folder, result.runs),
            bypassed=_read_parameters(folder) | _read_parameters(above),
            attached=tuple(path for path in result.unexpected if path.name == SCALING),
            system=system,
            benchmark=folder.name,
            scale=scale,
        )

    def list_power(
        self, folder: Path, runs: Sequence[Path]
    ) -> Mapping[str, tuple[Path, ...]] | None:
        """List the power logs of each run that has some; None without a folder of them."""
        if not (folder / POWER).is_dir():
            return None
        return {
            run.stem: tuple(self.show(Path(entry.path)) for entry in self.list_entries(inner))
            for run in runs
            if (inner := folder / POWER / run.stem).is_dir()
        }

    def find_without_logs(self, root: Path) -> Iterator[Path]:
        """Find the folders that lie where a result does, but hold no run logs."""
        for system in self.list_folders(root / "results", quiet=True):
            inner = self.list_folders(system, quiet=True)
            scales = [folder for folder in inner if folder.name in SCALES]
            for folder in (path for scale in scales for path in self.list_folders(scale)):
                inner.append(folder)
            for folder in (path for path in inner if path not in scales):
                if not any(self.find_result_folders(folder, 1)):
                    yield self.show(folder)

    def find_unfit(self, root: Path) -> Iterator[Refused]:
        """Find what mlcommons' repositories do not take: odd names, large files, lost links."""
        count, waiting = 0, [root]
        while waiting and count < FILES_MAX:
            folder = waiting.pop()
            with contextlib.suppress(OSError), os.scandir(folder) as scanned:
                for entry in sorted(scanned, key=lambda entry: entry.name):
                    count += 1
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(Path(entry.path))
                    if why := _explain_unfit(entry):
                        yield Refused(self.show(Path(entry.path)), why)

    def place(self, folder: Path) -> tuple[str | None, str | None]:
        """Return the system and the scale that the folder of a result lies in."""
        inside = self.find_names(folder)
        return inside[0] if inside else None, inside[-2] if len(inside) > 2 else None

    def find_root(self, folder: Path) -> Path:
        """Find the submitter's folder around a result; outside any layout, the result itself."""
        inside = self.find_names(folder)
        return folder.parents[len(inside)] if inside else folder

    def find_names(self, folder: Path) -> tuple[str, ...]:
        """Find the names below ``results``: system, perhaps strong or weak, benchmark."""
        parts = folder.parts
        for below in range(2, min(FOLDERS_DEEP_MAX + 1, len(parts) - 1)):
            if parts[-below - 1] == "results":
                return parts[-below:]
        return ()


def _explain_unfit(entry: os.DirEntry[str]) -> str:
    if entry.name.startswith("."):
        return "a name that begins with a dot"
    if " " in entry.name:
        return "a name with a blank"
    if entry.is_symlink():
        return "" if os.path.exists(entry.path) else "a link that leads nowhere"
    is_large = entry.is_file() and entry.stat().st_size > FILE_BYTES_MAX
    return f"a file of more than {FILE_BYTES_MAX // 2**20} MiB" if is_large else ""


def _read_parameters(folder: Path) -> frozenset[str]:
    path = folder / PARAMETERS
    if not path.is_file() or path.is_symlink() or path.stat().st_size > PARAMETERS_BYTES_MAX:
        return frozenset()
    return frozenset(path.read_text(encoding="utf-8", errors="replace").split())
