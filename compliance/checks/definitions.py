"""Find what a log is judged by: its definition, benchmark, division and batch size."""

from cepheid.compliance.checks.registry import Place
from cepheid.compliance.read.log.runlog import HasTexts, RunLog
from cepheid.rules import definition, rounds
from cepheid.rules.definition import Definition
from cepheid.rules.events import CHOICES, is_integer
from cepheid.rules.rounds import RoundBenchmark

DIVISIONS = CHOICES["submission_division"]


def find_log_definition(run: HasTexts, place: Place) -> Definition | None:
    """Return the definition that a log is judged by.

    That is the one that its folder names, else the one that the log names. It is None for an
    unknown benchmark or scale, and in a round of MLPerf.
    """
    if rounds.load(place.round).is_history:
        return None
    return find_named_definition(place.benchmark, place.scale) or find_named_definition(
        run.text("submission_benchmark"), run.text("submission_scale")
    )


def find_named_definition(benchmark: str | None, scale: str | None) -> Definition | None:
    """Return the definition of a benchmark at a scale, or None if there is none."""
    if benchmark in definition.names() and scale in definition.scales(benchmark):
        return definition.load(benchmark, scale)
    return None


def find_round_benchmark(run: HasTexts, place: Place) -> RoundBenchmark | None:
    """Return the benchmark of a round of MLPerf that the log names, else the one of its folder."""
    judged_in = rounds.load(place.round)
    named = judged_in.benchmark(run.text("submission_benchmark"))
    return named or judged_in.benchmark(place.benchmark)


def find_division(run: RunLog, place: Place) -> str | None:
    """Return the division of the folder, else the one that the log names; None if it is unknown."""
    division = place.division or run.text("submission_division")
    return division if division in DIVISIONS else None


def has_digest_of(run: RunLog, judged_by: Definition) -> bool:
    """Return False if the log was written for another version of the definition."""
    logged = run.text("definition_digest")
    return logged is None or logged == judged_by.digest


BATCH_SIZE = "global_batch_size"  # rules T8, T10 and T11 count with it


def read_batch_size(run: RunLog) -> int | None:
    """Return the global batch size in the log, or None if it is not a positive integer."""
    value = run.value(BATCH_SIZE)
    return value if is_integer(value) and value > 0 else None
