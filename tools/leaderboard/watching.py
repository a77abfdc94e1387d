"""What happens below the folders of results: which files changed, and how far the runs are."""

import hashlib
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from cepheid.compliance.finding import escape
from cepheid.compliance.read.log import runlog
from cepheid.compliance.read.log.runlog import PARTIAL
from cepheid.leaderboard.rows.entry import Entry

FILES_MAX = 200_000
DEPTH_MAX = 20
RUNNING_MAX = 16  # runs of one result at a time
RUNNING_BYTES_MAX = 2**24  # of a log that is still written; a longer one is not read for its state


@dataclass(frozen=True)
class Signature:
    """Digests of names, sizes and times of files: of logs that are still written, and the rest."""

    finished: str
    running: str


def take_signature(paths: Sequence[Path], output: Path) -> Signature:
    """Return the signature of all files below the paths, but for those of the site itself."""
    finished, running = hashlib.sha256(), hashlib.sha256()
    left_out = os.path.abspath(output)
    lines = (line for path in paths for line in _list(path, left_out))
    for name, facts in islice(lines, FILES_MAX):
        digest = running if name.endswith(PARTIAL) else finished
        digest.update(f"{name}\0{facts}\0".encode("utf-8", "surrogateescape"))
    return Signature(finished.hexdigest(), running.hexdigest())


def _list(folder: Path, left_out: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if os.path.abspath(entry.path) == left_out or entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            if depth < DEPTH_MAX:
                yield from _list(Path(entry.path), left_out, depth + 1)
            continue
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:  # renamed since the folder was listed
            continue
        yield entry.path, f"{status.st_size}\0{status.st_mtime_ns}"


@dataclass(frozen=True)
class State:
    """How far a result is, in words."""

    runs: str
    standing: str
    running: tuple[str, ...]

    def __str__(self) -> str:
        told = [f"{self.runs} runs", *self.running, self.standing]
        return "; ".join(told)


class Report:
    """Prints a line for each result whose state has changed, then one for all of them."""

    def __init__(self) -> None:
        self.before: dict[str, State] = {}

    def tell(self, entries: Sequence[Entry]) -> None:
        """Print what has changed since the last call."""
        now = {entry.id: describe_state(entry) for entry in entries}
        clock = time.strftime("%H:%M:%S")
        for name, state in now.items():
            if self.before.get(name) != state:
                print(f"{clock}  {name}: {state}")
        for name in self.before.keys() - now.keys():
            print(f"{clock}  {name}: gone")
        if now != self.before:
            print(f"{clock}  {_summarize(entries, now)}", flush=True)
        self.before = now


def _summarize(entries: Sequence[Entry], states: dict[str, State]) -> str:
    counts = Counter(entry.standing.verdict for entry in entries)
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    running = sum(len(state.running) for state in states.values())
    results = f"{len(entries)} result{'' if len(entries) == 1 else 's'}"
    return f"{results}: {verdicts or 'none'}; {running} run{'' if running == 1 else 's'} going on"


def describe_state(entry: Entry) -> State:
    """Describe how far a result is: its runs, those that still go on, and its standing."""
    running = map(_describe_running, _list_running(entry.judged.folder.path))
    return State(str(entry.counts), _describe_standing(entry), tuple(running))


def _list_running(folder: Path) -> list[Path]:
    """List the logs of a result that are written now, which the last build may not have seen."""
    return sorted(islice(folder.glob(f"result_*{PARTIAL}"), RUNNING_MAX))


def _describe_standing(entry: Entry) -> str:
    score = entry.standing.score
    if score is None:
        return entry.standing.text or entry.standing.verdict
    unit = entry.kind.choose_unit(score.main.mean)
    return f"{entry.standing.verdict}, {unit.format(score.main.mean)} {unit.name}"


def _describe_running(path: Path) -> str:
    """Describe the run of a log that is still written, from its last evaluation."""
    name = escape(path.name.removesuffix(".partial").removesuffix(".txt"))
    try:
        if path.is_symlink() or path.stat().st_size > RUNNING_BYTES_MAX:
            return f"{name} is going on"
    except OSError:  # it has just ended
        return f"{name} has ended"
    log = runlog.read(path)
    if not log.quality_curve:
        return f"{name} has begun"
    last = log.quality_curve[-1]
    metrics = ", ".join(f"{escape(key)} {value:.4g}" for key, value in [*last.metrics.items()][:3])
    return f"{name} at {last.samples:,} samples: {metrics}"
