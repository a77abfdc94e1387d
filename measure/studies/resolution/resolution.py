"""Which differences a benchmark shows, by simulation from its recorded runs."""

import math
import statistics
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from cepheid.measure.engine.options import read_command
from cepheid.measure.engine.study import Column, Measured, Request, Study
from cepheid.measure.studies.resolution import simulation
from cepheid.measure.studies.resolution.simulation import Setting
from cepheid.rules import definition as definitions
from cepheid.rules import evidence, extras
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError
from cepheid.rules.evidence import RESOLUTION_FILE
from cepheid.rules.host import require_checkout

if TYPE_CHECKING:
    import numpy as np
    from numpy.random import Generator
    from numpy.typing import NDArray

RESULTS, TABLES, SYSTEMS = 20_000, 4_000, 10
LEAST_RUNS = 3  # recorded, for a scatter


@dataclass(frozen=True)
class Resolution:
    """What the runs of a benchmark at a scale show; shares and probabilities.

    ``pair`` and ``table`` are the smallest differences that are seen with a probability of 0.8,
    between two systems and in a table of ten by Holm's first step; None where ten times is not.
    ``scatter`` is that of crossings, None with all that follows from it for a benchmark that
    generates. ``early`` and ``late`` are the probabilities that the test of convergence sees 0, 10
    and 20%.
    """

    benchmark: str
    scale: str
    definition_digest: str
    runs: int
    reference_runs: int
    spread: float
    recorded_spread: float | None
    scatter: float | None
    coverage_given: float
    coverage: float
    pair: float | None
    table: float | None
    pair_recorded: float | None
    false_ranks: float
    early: tuple[float, float, float] | None
    late: tuple[float, float, float] | None


def list_definitions(request: Request) -> list[Definition]:
    """Return the benchmarks and scales that are asked for. Raises UserError for unknown ones."""
    asked = request.arguments
    extras.require("numpy", "scipy")
    names = [asked.benchmark] if asked.benchmark else definitions.names()
    if asked.record:
        require_checkout("what the pages of the benchmarks say")
        if asked.runs or asked.spread != USUAL_SPREAD:
            raise UserError(
                "--record keeps what follows from the rules: leave --runs and --spread out"
            )
    return [
        definitions.load(name, scale)
        for name in names
        for scale in definitions.scales(name)
        if asked.scale in ("all", scale)
    ]


def measure(request: Request, wanted: Sequence[Definition]) -> Measured:
    """Simulate each benchmark; say which ones have no recorded runs."""
    asked, rows, missing = request.arguments, [], []
    for one in wanted:
        curves = _list_correct(one)
        if len(curves) < LEAST_RUNS:
            missing.append(f"{one.name}, {one.scale} scale: no recorded runs")
            continue
        row = simulate(one, asked.runs or one.runs.required, asked.spread / 100)
        rows.append(row)
        if asked.record:
            document = evidence.read_file(one.name, RESOLUTION_FILE)
            document[one.scale] = asdict(row)
            evidence.write_file(one.name, RESOLUTION_FILE, document)
    error = math.sqrt(0.95 * 0.05 / RESULTS)
    error_of_tables = math.sqrt(0.05 * 0.95 / TABLES)
    facts = {"results": RESULTS, "tables": TABLES, "resolutions": [asdict(row) for row in rows]}
    return Measured(
        rows,
        title=f"times per sample that scatter by {asked.spread:g}% between runs; "
        "of normal and resampled crossings, the worse",
        notes=[
            f"{RESULTS:,} results and {TABLES:,} tables each: a rate near 0.95 has a standard "
            f"error of {error:.4f}, one of tables near 0.05 of {error_of_tables:.4f}",
            *missing,
        ],
        facts=facts,
        is_fine=not missing or not asked.benchmark,
    )


def _list_correct(one: Definition) -> tuple[evidence.Curve, ...]:
    found = evidence.load(one)
    return found.correct if found else ()


def simulate(one: Definition, runs: int, spread: float) -> Resolution:
    """Return what so many runs show, with times per sample that scatter by ``spread``."""
    curves = _list_correct(one)
    crossings = [math.log(c) for curve in curves if (c := curve.find_crossing(one))]
    trains = one.kind == "train"
    models = list(_list_models(crossings)) if trains else [None]
    recorded = measure_spread(curves)
    found = [
        _simulate(one, Setting(runs, max(len(crossings), 2), spread, draw), recorded, number)
        for number, draw in enumerate(models)
    ]
    worst: dict[str, Any] = {
        name: max(ends, key=lambda value: math.inf if value is None else value)
        for name in ("pair", "table", "pair_recorded", "false_ranks")
        if (ends := [each[name] for each in found])
    }
    worst |= {
        name: min((each[name] for each in found), key=lambda value: -abs(value - 0.95))
        for name in ("coverage_given", "coverage")
    }
    for name in ("early", "late"):
        ends = [each[name] for each in found if each[name]]
        worst[name] = (
            (max(e[0] for e in ends), min(e[1] for e in ends), min(e[2] for e in ends))
            if ends
            else None
        )
    scatter = statistics.stdev(crossings) if trains else None
    return Resolution(
        one.name, one.scale, one.digest, runs, len(crossings) if trains else 0, spread, recorded,
        scatter, **worst,
    )  # fmt: skip


def measure_spread(curves: Sequence[evidence.Curve]) -> float | None:
    """Return the scatter of the logarithm of seconds per sample between recorded runs.

    Runs that were made several at a time say nothing of it; of the others, those of the machine
    and implementation with most runs count.
    """
    alone = [curve for curve in curves if "runs_at_once" not in curve.measured]
    groups = [[curve for curve in alone if curve.measured == one.measured] for one in alone]
    paces = [
        math.log(curve.seconds / curve.evaluations[-1][0])
        for curve in max(groups, key=len, default=[])
        if curve.evaluations and curve.seconds > 0 and curve.evaluations[-1][0] > 0
    ]
    return statistics.stdev(paces) if len(paces) >= LEAST_RUNS else None


def _list_models(
    crossings: Sequence[float],
) -> "Iterator[Callable[[Generator, tuple[int, ...]], NDArray[np.float64]]]":
    """Yield how logarithms of crossings are drawn: normal ones, and the recorded ones again."""
    import numpy as np

    scatter, centred = statistics.stdev(crossings), np.array(crossings) - np.mean(crossings)
    yield lambda source, shape: source.normal(0, scatter, shape)
    yield lambda source, shape: source.choice(centred, shape)


def _simulate(
    one: Definition, setting: Setting, recorded: float | None, number: int
) -> Mapping[str, Any]:
    import numpy as np

    seed = zlib.crc32(f"{one.name} {one.scale} {number}".encode())
    source = np.random.default_rng([seed, setting.runs])
    alone = simulation.draw_results(setting, source, RESULTS)
    pairs = simulation.draw_results(setting, source, RESULTS, systems=2)
    given, whole = simulation.find_coverage(alone)
    tables = simulation.draw_results(setting, source, TABLES, systems=SYSTEMS)
    resolutions = [simulation.find_resolution(pairs, level) for level in LEVELS]
    if recorded is not None:
        noisy = Setting(setting.runs, setting.reference_runs, recorded, setting.draw)
        draws = simulation.draw_results(noisy, source, RESULTS, systems=2)
        resolutions.append(simulation.find_resolution(draws, LEVELS[0]))
    pair, table, pair_recorded, *_ = (
        *(None if math.isinf(value) else value for value in resolutions), None,
    )  # fmt: skip
    return {
        "coverage_given": given,
        "coverage": whole,
        "pair": pair,
        "table": table,
        "pair_recorded": pair_recorded,
        "false_ranks": simulation.find_false_ranks(tables),
        "early": _find_verdicts(setting, source, -1) if setting.draw else None,
        "late": _find_verdicts(setting, source, 1) if setting.draw else None,
    }


LEVELS = (simulation.LEVEL, simulation.LEVEL / (SYSTEMS * (SYSTEMS - 1) / 2))


def _find_verdicts(setting: Setting, source: "Generator", sign: int) -> tuple[float, float, float]:
    """Return how often results that are 0, 10 and 20% early or late are judged so."""
    rates = []
    for share in (0.0, 0.1, 0.2):
        draws = simulation.draw_results(setting, source, RESULTS, later=math.log1p(sign * share))
        seen = draws.is_early if sign < 0 else draws.loading == 0
        rates.append(float(seen.mean()))
    return rates[0], rates[1], rates[2]


def format_share(share: float | None) -> str:
    """Format a share as percent: ``5.2%``."""
    return "above 900%" if share is None else f"{100 * share:.1f}%"


def _format_rates(rates: tuple[float, float, float] | None) -> str:
    return "" if rates is None else " ".join(f"{rate:.3f}" for rate in rates)


USUAL_SPREAD = 2.0  # percent
COLUMNS = (
    Column("benchmark", lambda row: f"{row.benchmark} {row.scale}"),
    Column("runs", "runs"),
    Column("reference", lambda row: row.reference_runs or None),
    Column("scatter of crossings", "scatter", format_share),
    Column("coverage given S, whole", lambda row: f"{row.coverage_given:.3f} {row.coverage:.3f}"),
    Column("a pair shows", lambda row: format_share(row.pair)),
    Column("in a table of 10", lambda row: format_share(row.table)),
    Column("false ranks", "false_ranks", "{:.3f}"),
    Column("early 0 10 20%", "early", _format_rates),
    Column("late 0 10 20%", "late", _format_rates),
    Column("recorded spread", "recorded_spread", format_share),
    Column("then a pair", lambda row: row.recorded_spread and format_share(row.pair_recorded)),
)

STUDY = Study("resolution", list_definitions, measure, COLUMNS, **read_command("resolution"))
