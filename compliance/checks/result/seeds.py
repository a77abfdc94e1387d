"""T15: the seeds of the runs of a result."""

from collections import Counter
from collections.abc import Iterator, Sequence

from cepheid.compliance.checks.registry import Needs, Place, find_division, has_digest_of, rule
from cepheid.compliance.checks.result.aside import check_set_aside
from cepheid.compliance.finding import Finding, breach, encode_canonically, format_value
from cepheid.compliance.read.log.records import Event
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.compliance.read.logs import ResultLogs
from cepheid.rules import rounds
from cepheid.rules.definition import Definition
from cepheid.rules.digests import derive_seed
from cepheid.rules.events import CURRENT_ROUND, is_blank, is_integer
from cepheid.rules.rounds import RoundBenchmark


def are_numbered_from_one(runs: Sequence[RunLog], definition: Definition) -> bool:
    """Return True for logs result_1.txt, result_2.txt … whose first one is run 0 (T16).

    Where a seed is derived as that of run 1, only the log of run 0 is missing.
    """
    if not runs or [run.index for run in runs] != [*range(1, len(runs) + 1)]:
        return False
    seed = runs[0].first("seed")
    is_derived = seed is not None and seed.metadata.get("origin") == "derived"
    return not is_derived or _check_derived(runs[0], definition, 0) is not None


DERIVED_COMPARED = 2_000  # more runs than anybody would make to choose from


@rule("T15", Needs.RESULT)
def check_seeds(
    result: ResultLogs, definition: Definition | RoundBenchmark, place: Place
) -> Iterator[Finding]:
    """Check that seeds differ, derived seeds are right, and no completed run is set aside (T15)."""
    if isinstance(definition, RoundBenchmark):
        yield from _check_seeds_of_history(result, place)
        return
    first = int(place.in_result and are_numbered_from_one(result.runs, definition))
    by_seed: dict[int, RunLog] = {}
    wrong: list[Finding] = []
    for run in result.runs:
        event = run.first("seed")
        if event is None or not is_integer(event.value):
            continue
        not_derived = _check_derived(run, definition, first)
        if not_derived:
            wrong.append(not_derived)
        elif event.value in by_seed:
            wrong.append(_report_repeated_seed(run, event, by_seed[event.value]))
        by_seed.setdefault(event.value, run)
    wrong += _check_chosen_seeds(result.runs, definition, first)
    yield from wrong
    yield from _check_sources(result.runs)
    yield from _check_given_seeds(result.runs, may_report=not wrong)
    yield from check_set_aside(result, definition)


def _check_seeds_of_history(result: ResultLogs, place: Place) -> Iterator[Finding]:
    """Check that no two runs of a round of MLPerf log the same seed from the same source line."""
    if SEEDS_BYPASS in result.folder.bypassed:
        return
    owners: dict[object, RunLog] = {}
    for run in result.runs:
        for event in run.all("seed") if len(result.runs) > 1 else ():
            fields = (event.value, event.metadata.get("file"), event.metadata.get("lineno"))
            owner = owners.setdefault(tuple(map(_identify, fields)), run)
            if owner is not run:
                yield _report_repeated_seed(run, event, owner)
                break
        is_required = rounds.load(place.round).log.seed_required and place.in_result
        if is_required and find_division(run, place) == "closed" and not run.all("seed"):
            yield breach(run, None, "T15.missing")


SEEDS_BYPASS = "seed-checker-bypass"  # in package_checker_params of a round of MLPerf


def _identify(value: object) -> object:
    """Return something that is equal for equal JSON; most values are integers and texts."""
    return (type(value), value) if type(value) in (int, str) else encode_canonically(value)


def _report_repeated_seed(run: RunLog, event: Event, owner: RunLog) -> Finding:
    return breach(run, event, "T15.repeated", seed=format_value(event.value), other=owner.path.name)


def _check_sources(runs: Sequence[RunLog]) -> Iterator[Finding]:
    """Report runs whose seed was logged by another line of code than in most runs."""
    sources = {
        run.path: f"{event.metadata.get('file')}:{event.metadata.get('lineno')}"
        for run in runs
        if (event := run.first("seed")) is not None
    }
    if len(set(sources.values())) < 2:
        return
    usual, _ = Counter(sources.values()).most_common(1)[0]
    for run in runs:
        if sources.get(run.path, usual) != usual:
            yield breach(
                run, run.all("seed")[0], "T15.source", usual=format_value(usual),
                source=format_value(sources[run.path]),
            )  # fmt: skip


def _check_given_seeds(runs: Sequence[RunLog], may_report: bool) -> Iterator[Finding]:
    """Note that seeds were given; report it where only some were, unless a seed is wrong anyway."""
    logged = [(run, event) for run in runs if (event := run.first("seed")) is not None]
    given = [(run, event) for run, event in logged if event.metadata.get("origin") == "given"]
    if given and len(given) < len(logged) and may_report:
        run, event = given[0]
        derived = next(r for r, e in logged if e.metadata.get("origin") != "given")
        yield breach(
            run, event, "T15.mixed", given=len(given), runs=len(logged), other=derived.path.name,
            seed=format_value(event.value),
        )  # fmt: skip
    elif given:
        run, event = given[0]
        count = f" (in {len(given)} of {len(runs)} runs)" if len(runs) > 1 else ""
        yield breach(run, event, "T15.given", times=count)


def _check_chosen_seeds(
    runs: Sequence[RunLog], definition: Definition, first: int
) -> Iterator[Finding]:
    """Report given seeds that would be the derived ones of other runs: the best of many runs."""
    numbers: dict[tuple[str, str, str], dict[int, int]] = {}
    for run in runs:
        event = run.first("seed")
        if event is None or event.metadata.get("origin") != "given" or run.index is None:
            continue
        who = _find_fields(run)
        if who is None or not is_integer(event.value):
            continue  # T2 reports it
        if who not in numbers:
            numbers[who] = {
                derive_seed(*who, _name(definition), number): number
                for number in reversed(range(DERIVED_COMPARED))
            }
        number = numbers[who].get(event.value % 2**32)
        if number is not None and number != run.index - first:
            yield breach(
                run, event, "T15.chosen", number=number, index=run.index - first,
                seed=format_value(event.value),
            )  # fmt: skip


def _find_fields(run: RunLog) -> tuple[str, str, str] | None:
    """Return nonce, submitter and system from which the seeds of a log follow, if it names them."""
    who, system = run.text("submission_org"), run.text("submission_platform")
    if who is None or system is None or is_blank(who) or is_blank(system):
        return None  # T2 reports it
    name = run.text("submission_round") or CURRENT_ROUND
    is_known = name == CURRENT_ROUND or name in rounds.names()
    return rounds.load(name if is_known else CURRENT_ROUND).nonce, who, system


def _name(definition: Definition) -> str:
    return f"{definition.name}-{definition.scale}"


def _check_derived(run: RunLog, definition: Definition, first: int) -> Finding | None:
    """Return a finding if the log says ``origin: derived`` but the seed is another one.

    ``first`` is the number of the first log, 1 where T16 reports that.
    """
    event, who = run.all("seed")[0], _find_fields(run)
    if event.metadata.get("origin") != "derived" or run.index is None:
        return None
    if who is None or not has_digest_of(run, definition):
        return None  # T2 or T14 reports it
    number = run.index - first
    expected = derive_seed(*who, _name(definition), number)
    if event.value == expected:
        return None
    runs = range(definition.runs.required)
    of_run = [at for at in runs if event.value == derive_seed(*who, _name(definition), at)]
    return breach(
        run, event, "T15.not_derived", expected=expected, index=number, seed=event.value,
        of_run=f", the seed of run {of_run[0]}" if of_run else "",
    )  # fmt: skip
