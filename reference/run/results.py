"""The folder that ``cepheid run --output`` fills: systems, results, what is there and missing."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from filelock import lock_descriptor

from reference.run import logfile
from reference.run.config import Execution, RunConfig
from reference.run.watcher import watched
from rules.errors import UserError, cannot_write
from rules.host import atomic_write

# What makes it the same system; the rest of a description may be corrected between two runs.
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
        """Where the weights that run ``index`` ended with are kept, outside ``results/``."""
        return self.weights_path / f"run_{index}{suffix}"

    def log(self, index: int) -> Path:
        """Where the log of run ``index`` stands when that run has ended."""
        return self.path / f"result_{index}.txt"

    def report(self, index: int) -> Path:
        """What was reported after run ``index``, beside its log (rule S1)."""
        return self.path / f"report_{index}.json"

    def pictures(self, index: int) -> Path:
        """What is to be seen after run ``index``, beside its log (rule S1)."""
        return self.path / f"pictures_{index}.png"

    def power_log(self, index: int) -> Path:
        """The power that sensors read during run ``index``, beside its log (rule T23)."""
        return self.path / f"power_{index}.csv"

    def present(self) -> list[int]:
        """The runs that have ended, whether they reached the targets or not."""
        numbers = (re.fullmatch(r"result_(\d+)\.txt", path.name) for path in self.path.iterdir())
        return sorted(int(found.group(1)) for found in numbers if found)

    def execution(self, asked: Execution) -> Execution:
        """How the runs that are there computed, so that all compute alike (rule T18); ``asked`` if
        there are none, or their logs do not say."""
        for index in self.present():
            told = logfile.last_record(self.log(index), "implementation")
            settled = told["value"].get("execution") if told else None
            if settled:
                return Execution(**settled)
        return asked

    def missing(self, count: int) -> list[int]:
        """Which of the runs 0 … count − 1 are still to be made."""
        return sorted(set(range(count)) - set(self.present()))


@contextmanager
def opened(output: Path, config: RunConfig, system: Mapping[str, Any]) -> Iterator[ResultFolder]:
    """The result folder of ``config`` under ``output``: made if missing, ours alone until closed.

    A log that is open in it is closed even if this process is killed. Raises UserError where the
    folder holds runs of another configuration, where another process is writing to it, or where it
    cannot be written.
    """
    folder = output / "results" / config.system / config.result_name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (output / "systems").mkdir(exist_ok=True)
        lock = os.open(folder, os.O_RDONLY)  # the folder is its own lock: no file is left behind
    except OSError as error:
        raise cannot_write(folder, error) from error
    try:
        if not lock_descriptor(lock, blocking=False):
            raise UserError(
                f"{folder}: another `cepheid run` is writing there ({_name_holder(lock)}); "
                "wait for it or choose another --output"
            )
        described = output / "systems" / f"{config.system}.json"
        keep_or_compare(described, dict(system), "system", SAME_SYSTEM, T18)
        shared, configuration = config.shared_by_runs(), folder / CONFIGURATION
        if [path.name for path in folder.iterdir()] == [CONFIGURATION]:
            configuration.unlink()  # of a run that never began: it binds none
        keep_or_compare(configuration, shared, "configuration", tuple(shared), T18)
        left_over = tuple(map(logfile.put_away, logfile.partials_in(folder)))
        weights = weights_folder(output) / config.system / config.result_name
        with watched(folder, lock):
            yield ResultFolder(folder, weights, left_over)
    finally:
        os.close(lock)


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


def weights_folder(output: Path) -> Path:
    """Where the weights of an output folder lie: in it, or beside ``submissions/``, since a
    submission holds none (rule S1)."""
    place = output.resolve()
    if place.parent.name == "submissions":
        return place.parents[1] / "checkpoints" / place.name
    return output / "checkpoints"


def keep_or_compare(
    path: Path, content: dict[str, Any], what: str, compared: tuple[str, ...], why: str
) -> None:
    """Write ``content`` the first time; afterwards its ``compared`` fields must be the same.

    Raises UserError where they are not, giving ``why`` as the reason, and where the file is damaged
    or cannot be written.
    """
    if not path.exists():
        try:
            atomic_write(path, json.dumps(content, indent=2) + "\n")
        except OSError as error:
            raise cannot_write(path, error) from error
        return
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(before, dict):
            raise ValueError("expected a JSON object")
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path}: damaged ({error}); move it away or choose another --output"
        ) from error
    before, content = ({key: facts.get(key) for key in compared} for facts in (before, content))
    if before == content:
        return
    raise UserError(
        f"{path}: holds another {what}: {_differences(_flat(before), _flat(content))}. "
        f"{why}: choose another --output, or move that folder away"
    )


def _differences(before: Mapping[str, object], now: Mapping[str, object]) -> str:
    def shown(value: object) -> str:
        text = json.dumps(value)
        return text if len(text) <= 40 else text[:37] + "…"

    return "; ".join(
        f"{key} was {shown(before.get(key))}, is {shown(now.get(key))}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    )


def _flat(content: Any, prefix: str = "") -> dict[str, object]:
    """Nested mappings as one, with dotted keys."""
    if not isinstance(content, Mapping):
        return {prefix.rstrip("."): content}
    flat: dict[str, object] = {}
    for key, value in content.items():
        flat |= _flat(value, f"{prefix}{key}.")
    return flat
