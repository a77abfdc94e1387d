"""The folder that ``cepheid run --output`` fills: its runs, and facts that all of them share."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
from filelock import lock_descriptor

from cepheid.reference.run import logfile
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.execution import Execution
from cepheid.reference.session.watcher import watch
from cepheid.rules import events
from cepheid.rules.errors import UserError, cannot_write, raise_if_refused
from cepheid.rules.host import atomic_write, remove_partials

CODE = "code"  # the short digests of the files that ran, by name
FILES_SHOWN = 10


def keep_or_compare(
    path: Path, content: dict[str, Any], what: str, compared: tuple[str, ...], why: str
) -> None:
    """Write ``content`` the first time; later check that its ``compared`` fields are the same.

    Raises UserError with the reason ``why`` where they are not, and where the file is damaged or
    cannot be written.
    """
    if not path.exists():
        try:
            atomic_write(path, json.dumps(content, indent=2) + "\n")
        except OSError as error:
            raise cannot_write(path, error) from error
        return
    refuse_difference(path, content, what, compared, why)


def refuse_difference(
    path: Path, content: dict[str, Any], what: str, compared: tuple[str, ...], why: str
) -> None:
    """Raise UserError as ``keep_or_compare`` does for a file that is there."""
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(before, dict):
            raise ValueError("expected a JSON object")
    except (OSError, ValueError) as error:
        raise_if_refused(path, error)
        raise UserError(
            f"{path}: damaged ({error}); move it away or choose another --output"
        ) from error
    changed = _describe_changed_files(before.get(CODE), content.get(CODE))
    before, content = ({key: facts.get(key) for key in compared} for facts in (before, content))
    if before == content:
        return
    differences = _describe_differences(_flatten(before), _flatten(content))
    differences += changed if before.get("code_digest") != content.get("code_digest") else ""
    raise UserError(
        f"{path}: holds another {what}: {differences}. {why}: "
        "choose another --output, or move that folder away"
    )


def _describe_changed_files(before: object, now: object) -> str:
    """Describe which files of the code changed, appeared or disappeared, as far as it is known."""
    if not (isinstance(before, dict) and before and isinstance(now, dict) and now):
        return ""
    parts = {
        "changed": [name for name in now if name in before and before[name] != now[name]],
        "new": [name for name in now if name not in before],
        "gone": [name for name in before if name not in now],
    }
    said = [f"{how}: {_shorten_list(names)}" for how, names in parts.items() if names]
    return f" ({'; '.join(said)})" if said else ""


def _shorten_list(names: list[str]) -> str:
    more = f" and {len(names) - FILES_SHOWN} more" if len(names) > FILES_SHOWN else ""
    return ", ".join(names[:FILES_SHOWN]) + more


def _describe_differences(before: Mapping[str, object], now: Mapping[str, object]) -> str:
    def shorten(value: object) -> str:
        text = json.dumps(value)
        return text if len(text) <= 40 else text[:37] + "…"

    return "; ".join(
        f"{key} was {shorten(before.get(key))}, is {shorten(now.get(key))}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    )


def _flatten(content: Any, prefix: str = "") -> dict[str, object]:
    """Return nested mappings as one, with dotted keys."""
    if not isinstance(content, Mapping):
        return {prefix.rstrip("."): content}
    flat: dict[str, object] = {}
    for key, value in content.items():
        flat |= _flatten(value, f"{prefix}{key}.")
    return flat


# These fields identify a system. The rest of a description may be corrected between two runs.
SAME_SYSTEM = (
    "submitter",
    "system",
    "nodes",
    "processor",
    "processor_cores_per_node",
    "accelerators_per_node",
    "accelerator",
    "framework",
)
CONFIGURATION = "configuration.json"
T18 = "Runs of one result share everything but the seed (rule T18)"


@dataclass(frozen=True)
class ResultFolder:
    """``DIR/results/<system>/<benchmark>-<scale>-<division>`` and the run logs in it."""

    path: Path
    weights_path: Path
    left_over: tuple[Path, ...] = ()  # logs that an earlier process, or its machine, left open

    def weights(self, index: int, suffix: str) -> Path:
        """Return the path for the final weights of run ``index``, outside ``results/``."""
        return self.weights_path / f"run_{index}{suffix}"

    def log(self, index: int) -> Path:
        """Return the path that the log of run ``index`` gets when the run has ended."""
        return self.path / f"result_{index}.txt"

    def report(self, index: int) -> Path:
        """Return the path of the report of run ``index``, beside its log (rule S1)."""
        return self.path / f"report_{index}.json"

    def pictures(self, index: int) -> Path:
        """Return the path of the pictures of run ``index``, beside its log (rule S1)."""
        return self.path / f"pictures_{index}.png"

    def power_log(self, index: int) -> Path:
        """Return the path of the power log of run ``index``, beside its log (rule T23)."""
        return self.path / f"power_{index}.csv"

    def present(self) -> list[int]:
        """Return the runs that have ended, whether they reached the targets or not."""
        if not self.path.is_dir():
            return []
        matches = (re.fullmatch(r"result_(\d+)\.txt", path.name) for path in self.path.iterdir())
        return sorted(int(match.group(1)) for match in matches if match)

    def missing(self, count: int) -> list[int]:
        """Return which of the runs 0 … count - 1 are still missing."""
        return sorted(set(range(count)) - set(self.present()))

    def execution(self, requested: Execution) -> Execution:
        """Return the execution settings of the present runs, so that all compute alike (rule T18).

        Returns ``requested`` if there are no runs, or their logs do not contain the settings.
        """
        for index in self.present():
            record = logfile.find_last_record(self.log(index), "implementation")
            settings = record["value"].get("execution") if record else None
            if settings:
                return Execution(**settings)
        return requested

    def estimate_time(self, runs: int) -> str:
        """Return how long so many runs take, judging by those present; "" if there are none."""
        durations = [_read_duration_seconds(self.log(index)) for index in self.present()]
        known = [seconds for seconds in durations if seconds is not None]
        if not known:
            return ""
        mean = sum(known) / len(known)
        return f"about {_format_duration(runs * mean)} ({runs} x {mean:,.0f} s, as the runs so far)"


def find_result_folder(output: Path, config: RunConfig) -> ResultFolder:
    """Return the result folder of ``config`` under ``output``, which need not exist."""
    weights = find_weights_folder(output) / config.system / config.result_name
    return ResultFolder(output / "results" / config.system / config.result_name, weights)


def find_obstacles(
    output: Path, config: RunConfig, system: Mapping[str, Any], code: Mapping[str, str]
) -> Iterator[str]:
    """Yield why ``open_result_folder`` would refuse these runs; nothing is written.

    What cannot be foreseen, such as a disk that becomes full, is left out.
    """
    folder = find_result_folder(output, config).path
    nearest = folder
    while not nearest.exists():
        nearest = nearest.absolute().parent
    if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        yield f"{nearest}: cannot be written"
        return
    if nearest == folder:
        lock = os.open(folder, os.O_RDONLY)
        try:
            if not lock_descriptor(lock, blocking=False):
                yield _describe_lock(folder, lock)
        finally:
            os.close(lock)
    for compared in _list_compared(output, config, system, code):
        if compared.path.exists() and not compared.is_left_over:
            try:
                compared.refuse_difference()
            except UserError as error:
                yield str(error)


@contextmanager
def open_result_folder(
    output: Path,
    config: RunConfig,
    system: Mapping[str, Any],
    code: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[ResultFolder]:
    """Make or open the result folder of ``config`` under ``output``, and lock it for this process.

    ``code`` are short digests of the files that run. A log that is open in it is closed even if
    this process is killed. Raises UserError where the folder holds runs of another configuration,
    where another process is writing to it, or where it cannot be written.
    """
    result = find_result_folder(output, config)
    folder = result.path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (output / "systems").mkdir(exist_ok=True)
        lock = os.open(folder, os.O_RDONLY)  # the folder is its own lock: no file is left behind
    except OSError as error:
        raise cannot_write(folder, error) from error
    try:
        if not lock_descriptor(lock, blocking=False):
            raise UserError(_describe_lock(folder, lock))
        for compared in _list_compared(output, config, system, code):
            if compared.is_left_over:
                compared.path.unlink()
            compared.keep_or_refuse()
        left_over = tuple(map(logfile.rename_log, logfile.list_partials(folder)))
        for place in (folder, result.weights_path):
            remove_partials(place)
        with watch(folder, result.weights_path, lock):
            yield replace(result, left_over=left_over)
    finally:
        os.close(lock)


@dataclass(frozen=True)
class _Compared:
    """A file beside the runs that says what they share: it is written once, then compared."""

    path: Path
    content: dict[str, Any]
    what: str
    fields: tuple[str, ...]

    @property
    def is_left_over(self) -> bool:
        """True for a configuration with which no run was made, so that a new one may differ."""
        folder = self.path.parent
        is_alone = self.path.name == CONFIGURATION and self.path.exists()
        return is_alone and [path.name for path in folder.iterdir()] == [CONFIGURATION]

    def keep_or_refuse(self) -> None:
        """Write the file, or raise UserError where it has other values."""
        keep_or_compare(self.path, self.content, self.what, self.fields, T18)

    def refuse_difference(self) -> None:
        """Raise UserError where the file has other values."""
        refuse_difference(self.path, self.content, self.what, self.fields, T18)


def _list_compared(
    output: Path, config: RunConfig, system: Mapping[str, Any], code: Mapping[str, str]
) -> tuple[_Compared, _Compared]:
    described = output / "systems" / f"{config.system}.json"
    shared = config.list_shared_settings()
    configuration = find_result_folder(output, config).path / CONFIGURATION
    return (
        _Compared(described, dict(system), "system", SAME_SYSTEM),
        _Compared(configuration, shared | {CODE: dict(code)}, "configuration", tuple(shared)),
    )


def _describe_lock(folder: Path, lock: int) -> str:
    return (
        f"{folder}: another `cepheid run` is writing there ({_name_holder(lock)}); "
        "wait for it or choose another --output"
    )


def _name_holder(lock: int, locks: Path = Path("/proc/locks")) -> str:
    """Name the process that holds the lock, as far as this machine's list of locks knows it."""
    inode = f":{os.fstat(lock).st_ino}"
    try:
        held = [line.split() for line in locks.read_text(encoding="ascii").splitlines()]
    except OSError:
        held = []
    for fields in held:
        if len(fields) > 5 and fields[1] == "FLOCK" and fields[5].endswith(inode):
            is_alive = psutil.pid_exists(int(fields[4]))
            return f"process {fields[4]}" + ("" if is_alive else ", which has just ended")
    return "perhaps on another machine"


def _read_duration_seconds(log: Path) -> float | None:
    """Return the time from the first to the last record of a log, None where it has no records."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    records = [line.removeprefix(events.MARKER) for line in lines if line.startswith(events.MARKER)]
    try:
        first_ms, last_ms = (json.loads(records[end])["time_ms"] for end in (0, -1))
    except (LookupError, ValueError):
        return None
    return float(last_ms - first_ms) / 1000


def _format_duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:,.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 6000 else f"{seconds / 3600:,.1f} h"


def find_weights_folder(output: Path) -> Path:
    """Return where the weights of an output folder lie.

    They lie in it, or beside ``submissions/``, because a submission contains none (rule S1).
    """
    place = output.resolve()
    if place.parent.name == "submissions":
        return place.parents[1] / "checkpoints" / place.name
    return output / "checkpoints"
