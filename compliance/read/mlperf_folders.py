"""Walks through folders of logs in the layout of the rounds of MLPerf."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from cepheid.compliance.read.contents import ResultFolder, Submitter, SystemFile
from cepheid.compliance.read.folders import ENTRIES_MAX, Reader

PRUNED = "pruned_results"  # logs that weak scaling sets aside; they are no result
POWER = "power"  # beside the logs of a result: a folder of power logs for each of them
SCALING = "scaling.json"  # beside logs that converge faster than the reference, since v2.1
FOLDERS_DEEP_MAX = 8  # how far below the given folder results are looked for


class MlperfReader(Reader):
    """Folders as the rounds of MLPerf have them.

    The given path may be a tree of submitters, one of them, a system, a result or a log.
    ``<submitter>/systems/<system>.json``, ``<submitter>/results/<system>/<benchmark>/`` and in HPC
    ``<submitter>/results/<system>/strong/<benchmark>/``. A result is a folder with logs in it.
    """

    log_name = re.compile(r"result_[^/]*\.txt")
    logs_max = ENTRIES_MAX  # weak scaling trains hundreds of models at once

    def find_submitters(self, folder: Path) -> Iterator[Submitter]:
        """Yield the submitters of all results below a folder."""
        found: dict[Path, list[Path]] = {}
        for result in self.find_result_folders(folder, FOLDERS_DEEP_MAX):
            found.setdefault(self.find_root(result), []).append(result)
        for root, folders in found.items():
            results = [self.list_placed_result(folder) for folder in folders]
            yield self.make_submitter(root, self.find_descriptions(root, results), results)

    def read_single_log(self, file: Path) -> Submitter:
        """Read what lies around one log, with that log alone."""
        root = self.find_root(file.parent)
        result = replace(self.list_placed_result(file.parent, read=False), runs=(self.show(file),))
        return self.make_submitter(root, self.find_descriptions(root, [result]), [result])

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
        inner = [
            path
            for path in (self.list_folders(folder, quiet=True) if deep else ())
            if path.name not in (PRUNED, POWER)
        ]
        results = [path for path in inner if path.name == "results"]
        # Beside results there may be much code, but no result, unless somebody is called results.
        is_submitter = results and not any((path / "results").is_dir() for path in inner)
        for path in results if is_submitter else inner:
            yield from self.find_result_folders(path, deep - 1)

    def list_placed_result(self, folder: Path, read: bool = True) -> ResultFolder:
        """List the result in a folder, with what the folder's place says about it."""
        inside = self.find_names(folder)
        result = (
            self.list_result(folder, None) if read else ResultFolder(self.show(folder), None, ())
        )
        return replace(
            result,
            attached=tuple(path for path in result.unexpected if path.name == SCALING),
            system=inside[0] if inside else None,
            benchmark=folder.name,
            scale=inside[-2] if len(inside) > 2 else None,
        )

    def find_root(self, folder: Path) -> Path:
        """Find the submitter's folder around a result; outside any layout, the result itself."""
        inside = self.find_names(folder)
        return folder.parents[len(inside)] if inside else folder

    def find_names(self, folder: Path) -> tuple[str, ...]:
        """Find the names below ``results``: system, perhaps strong or weak, benchmark."""
        for above, parent in enumerate(folder.parents):
            if parent.name == "results" and 0 < above < FOLDERS_DEEP_MAX:
                return folder.parts[-above - 1 :]
        return ()
