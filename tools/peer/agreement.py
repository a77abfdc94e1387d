"""Compare our verdicts with mlcommons' over published rounds: logs, results and packages.

``CEPHEID_RESULTS_REPOSITORIES`` names a folder with clones of github.com/mlcommons' repositories
of results, such as ``training_results_v5.1``. What is compared is written beside them at once, so
that a comparison goes on where it was stopped.

How many times as fast `cepheid check` is, in processor time, stands in the same record. Both judge
the same logs of a round, one by one, in turns and in this process. What starting costs is left out:
each judges all of them once before, and the command line is parsed. The logs are drawn at random
with a fixed seed.
"""

import contextlib
import csv
import io
import logging
import os
import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from cepheid.compliance.checks.mlperf.requirements import is_broken, list_breaches
from cepheid.compliance.checks.registry import Place
from cepheid.compliance.judge.judgement import judge, list_units
from cepheid.compliance.judge.unit import Unit, judge_unit
from cepheid.compliance.read import package
from cepheid.compliance.read.log import runlog
from cepheid.rules import rounds
from cepheid.rules.errors import UserError
from cepheid.rules.mlperf.rule_files import RuleSet, find_rule_sets, require_rule_set
from cepheid.rules.rounds import Round
from cepheid.tools import check_compliance
from cepheid.tools.peer.asked import CRASH, check_package, compare_convergence, judge_log

VARIABLE = "CEPHEID_RESULTS_REPOSITORIES"
RECORD = "agreement.csv"
REPOSITORY = re.compile(r"(training|hpc)_results_v([0-9]\.[0-9])")
WHOLE = {f"mlperf-{name}" for name in (
    "training-0.6", "training-4.0", "training-5.0", "training-5.1", "hpc-2.0", "hpc-3.0",
)}  # fmt: skip
SAMPLE, SEED = 200, 51  # logs of each other round, drawn at random with a fixed seed
SPEED = "speed"  # the kind of milliseconds of the processor for each log
LOGS, TURNS = 20, 3  # that are judged to see how fast both are, and how often
FACTOR_WITHIN = 1e-9


@dataclass(frozen=True)
class Compared:
    """What both say about a log or a result (``kind``); ``path`` is that in the repository."""

    round: str
    kind: str
    path: str
    peer: str
    ours: str
    peer_says: str = ""
    we_say: str = ""

    @property
    def is_equal(self) -> bool:
        """Whether both say the same; a log that crashes the peer is one that we refuse."""
        return self.ours == self.peer or (self.peer == CRASH and self.ours in ("FAILED", "none"))


def find_repositories(folder: Path) -> Mapping[str, Path]:
    """Return the repository of each round that is there and has rules, by the round's name."""
    found = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if match := REPOSITORY.fullmatch(path.name):
            found[f"mlperf-{match[1]}-{match[2]}"] = path
    return {name: path for name, path in found.items() if name in find_rule_sets()}


def require_repositories() -> Path:
    """Return the folder of the repositories. Raises UserError where there is none."""
    folder = Path(os.environ.get(VARIABLE, ""))
    if not os.environ.get(VARIABLE) or not find_repositories(folder):
        raise UserError(
            f"{VARIABLE} must name a folder with clones of github.com/mlcommons/"
            "training_results_v5.1 and others; fix: clone them, and set it"
        )
    return folder


def compare_rounds(folder: Path, only: Sequence[str] = ()) -> list[Compared]:
    """Compare what has not been compared yet, record it, and return everything recorded."""
    record = folder / RECORD
    known = read_record(record)
    done = {(each.round, each.kind, each.path) for each in known}
    for name, repository in find_repositories(folder).items():
        for each in compare_round(name, repository, done) if not only or name in only else ():
            add_to_record(record, [each])
            known.append(each)
    return known


def add_to_record(path: Path, compared: Sequence[Compared]) -> None:
    """Append what was compared to a file, at once, so that nothing is lost."""
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Compared)])
        if not path.stat().st_size:
            writer.writeheader()
        writer.writerows(map(asdict, compared))


def read_record(path: Path) -> list[Compared]:
    """Return what a file records of earlier comparisons; a last line that was cut is left out."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [Compared(**row) for row in csv.DictReader(file) if None not in row.values()]


def compare_round(
    name: str, repository: Path, done: Iterable[tuple[str, str, str]] = (), sample: int = SAMPLE
) -> Iterator[Compared]:
    """Compare logs, results and whole submissions of a round but those that are ``done``.

    All logs of the rounds in ``WHOLE``, and a sample of the others. A small sample has no packages.
    """
    judged_in, rule_set, seen = rounds.load(name), require_rule_set(name), frozenset(done)
    listed = package.read(repository, judged_in.layout)
    units = [unit for who in listed.submitters for unit in list_units(who, listed, judged_in)]
    logs = sorted(log for unit in units for log in unit.folder.runs)
    if name not in WHOLE or sample < SAMPLE:
        logs = sorted(random.Random(SEED).sample(logs, min(sample, len(logs))))
    chosen = {log.parent for log in logs}
    for log in logs:
        if (name, "log", _name(log, repository)) not in seen:
            yield _compare_log(log, judged_in, rule_set, repository)
    for unit in units:
        is_new = (name, "result", _name(unit.folder.path, repository)) not in seen
        if is_new and unit.folder.path in chosen and has_points(rule_set, unit, judged_in):
            yield _compare_result(unit, rule_set, repository)
    for who in (who for who in listed.submitters if who.is_whole and sample >= SAMPLE):
        if (name, "package", _name(who.path, repository)) not in seen:
            yield _compare_package(who.path, judged_in, rule_set, repository)


def has_points(rule_set: RuleSet, unit: Unit, judged_in: Round) -> bool:
    """Return whether mlcommons has reference points for a result: for closed ones, since v1.0.

    Not for one of which logs are missing, as some are in these repositories: M2 reports it.
    """
    benchmark = judged_in.benchmark(unit.place.benchmark)
    if benchmark is None or len(unit.folder.runs) < benchmark.runs.required:
        return False
    return unit.place.division == "closed" and bool(rule_set.read_reference_runs(benchmark.name))


def _compare_log(log: Path, judged_in: Round, rule_set: RuleSet, repository: Path) -> Compared:
    answer, run, place = judge_log(log, rule_set), runlog.read(log), Place(round=judged_in.name)
    ours = "FAILED" if is_broken(run, place) else "SUCCESS"
    broken = [f"{each.kind} {' '.join(each.keys)}" for each in list_breaches(run, place)]
    why = "; ".join(broken[:5]) if ours == "FAILED" else ""
    path = _name(log, repository)
    return Compared(judged_in.name, "log", path, answer.verdict, ours, answer.says, why)


def _compare_result(unit: Unit, rule_set: RuleSet, repository: Path) -> Compared:
    answer = compare_convergence(unit.folder.runs, rule_set)
    found = judge_unit(unit).of_mlcommons
    ours, factor = (found.verdict, found.factor) if found else ("none", 1.0)
    if ours == answer.verdict == "pass" and abs(factor - answer.factor) > FACTOR_WITHIN:
        ours = f"pass with {factor:.6f} instead of {answer.factor:.6f}"
    path = _name(unit.folder.path, repository)
    return Compared(unit.judged_in.name, "result", path, answer.verdict, ours, answer.says)


def _compare_package(
    submitter: Path, judged_in: Round, rule_set: RuleSet, repository: Path
) -> Compared:
    """Compare the verdicts on a submitter's folder, but for the names of its files (M6)."""
    answer, errors = check_package(submitter, rule_set)
    judgement = judge([package.read(submitter, judged_in.layout)], judged_in)
    found = [each for each in judgement.findings if each.code != "M6.unfit"]
    codes = Counter(
        each.code for each in found if each.is_error and each.rule in judged_in.of_mlcommons
    )
    said = (text for each in errors.values() for text in each)
    theirs = Counter(re.sub(r"[0-9]+|: .*|/\S+", "", text).strip() for text in said)
    listed = [f"{number} x {text}" for text, number in sorted(theirs.items())]
    return Compared(
        judged_in.name, "package", _name(submitter, repository), answer.verdict,
        "FAILED" if codes else "SUCCESS", "; ".join(filter(None, [answer.says, *listed])),
        "; ".join(f"{number} x {code}" for code, number in sorted(codes.items())),
    )  # fmt: skip


def _name(path: Path, repository: Path) -> str:
    return path.absolute().relative_to(repository.absolute()).as_posix()


def make_tables() -> str:
    """Compare what is left to compare, and return the tables in Markdown."""
    return "\n".join(write_table(compare_rounds(require_repositories())))


def write_table(compared: Sequence[Compared]) -> Iterator[str]:
    """Write one row of Markdown for each round: what was compared, and how often both agree."""
    yield (
        "| round | logs | both accept | both refuse | disagree | RCP verdicts | disagree "
        "| times as fast |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for name in (name for name in rounds.names() if any(each.round == name for each in compared)):
        of_round = [each for each in compared if each.round == name]
        logs = [each for each in of_round if each.kind == "log"]
        results = [each for each in of_round if each.kind == "result"]
        said = Counter(each.ours for each in logs if each.is_equal)
        ratio = [float(each.peer) / float(each.ours) for each in of_round if each.kind == SPEED]
        apart = [sum(not each.is_equal for each in kind) for kind in (logs, results)]
        yield (
            f"| `{name}` | {len(logs):,} | {said['SUCCESS']:,} | {said['FAILED']:,} | {apart[0]} "
            f"| {len(results) or '–'} | {apart[1] if results else '–'} "
            f"| {f'{ratio[-1]:.1f}' if ratio else '–'} |"
        )


def measure_rounds() -> str:
    """Measure the rounds of which nothing is recorded, and return all numbers as lines."""
    folder = require_repositories()
    record = folder / RECORD
    known = [each for each in read_record(record) if each.kind == SPEED]
    for name, repository in find_repositories(folder).items():
        if name not in {each.round for each in known}:
            known.append(measure_round(name, draw_logs(name, repository)))
            add_to_record(record, known[-1:])
    return "\n".join(f"{each.round:24}{each.we_say}" for each in known)


def draw_logs(name: str, repository: Path, number: int = LOGS) -> Sequence[Path]:
    """Draw logs of a round at random, with a fixed seed."""
    listed = package.read(repository, rounds.load(name).layout)
    logs = sorted(log for who in listed.submitters for one in who.results for log in one.runs)
    return random.Random(SEED).sample(logs, min(number, len(logs)))


def measure_round(name: str, logs: Sequence[Path], turns: int = TURNS) -> Compared:
    """Measure both on the same logs, and return milliseconds of both and the ratio."""
    rule_set = require_rule_set(name)
    command = check_compliance.COMMAND.parse(["--round", name, "--jobs", "1", *map(str, logs)])

    def judge_theirs() -> None:
        for log in logs:
            judge_log(log, rule_set)

    with _silence():
        pairs = [
            (_clock(lambda: check_compliance.check(command)), _clock(judge_theirs))
            for _ in range(turns + 1)
        ][1:]
    ours, theirs = (1000 * statistics.median(each) / len(logs) for each in zip(*pairs, strict=True))
    ratios = sorted(b / a for a, b in pairs)
    says = (
        f"{theirs / ours:.1f} times ({ratios[0]:.1f} to {ratios[-1]:.1f}) on {len(logs)} logs: "
        f"{ours:.2f} and {theirs:.1f} ms of each"
    )
    return Compared(name, SPEED, f"{len(logs)} logs", f"{theirs:.3f}", f"{ours:.4f}", we_say=says)


def _clock(function: Callable[[], object]) -> float:
    started = time.process_time()
    function()
    return time.process_time() - started


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Print nothing, and let the peer log nothing, which would only cost it time."""
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)
