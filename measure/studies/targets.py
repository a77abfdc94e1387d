"""Whether the targets of a benchmark separate correct runs from broken variants.

``benchmarks/<name>/evidence.json`` holds the quality curves; the tests read it.
"""

from collections.abc import Sequence

from cepheid.benchmarks import registry
from cepheid.benchmarks.registry import import_task
from cepheid.measure.engine import options
from cepheid.measure.engine.study import Help, Measured, Request, Study
from cepheid.measure.engine.trainings import CORRECT, Training, record_missing
from cepheid.measure.studies import margins
from cepheid.reference.run.config import configure
from cepheid.reference.session.frameworks import find_create
from cepheid.rules import evidence
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError, did_you_mean
from cepheid.rules.evidence import Curve, Evidence

DESCRIPTION = """\
Train the reference with several seeds, and each broken variant (shuffled labels, frozen weights, …)
through its full budget. Record the quality curves in benchmarks/<name>/evidence.json. A benchmark
that generates is judged once a run. The last lines say whether the seeds are enough: how probably
one more misses, and how far the nearest broken run stays from the targets.

The tests accept the targets of a benchmark only with such evidence for the same definition. Each
run is recorded as it ends, and a run that is recorded for this definition is not made again: the
same command continues after an interruption. Several commands may share the work, on one
kind of machine: each makes the variants that --only names.
"""
EXAMPLES = """\
example:
  cepheid measure targets galaxy_shape --scale mini
  cepheid measure targets galaxy_shape --scale full --only correct
  cepheid measure targets galaxy_shape --scale full --only frozen      # at the same time

exit codes: 0 the targets separate correct from broken; 1 they do not, or runs are still missing;
2 wrong use
"""


def list_trainings(request: Request) -> list[Training]:
    """Return the runs of the correct reference and of its broken variants, seeds 1, 2, …."""
    definition, asked = request.definition, request.arguments
    request.require_extras()
    broken = registry.import_module(definition.name, "broken").VARIANTS
    sources = {CORRECT: import_task(definition, "torch"), **broken}
    factories = {name: find_create(source) for name, source in sources.items()}
    for name in asked.only or ():
        if name not in factories:
            raise UserError(
                f'--only: there is no variant "{name}"{did_you_mean(name, factories)} '
                f"(all: {', '.join(factories)})"
            )
    seeds = asked.seeds or evidence.CORRECT_SEEDS_REQUIRED[definition.scale]
    return [
        Training(
            f"{variant}, seed {seed}",
            variant,
            create,
            configure(definition, seed=seed, data_root=request.data_root),
        )
        for variant, create in factories.items()
        for seed in range(1, 1 + (seeds if variant == CORRECT else asked.broken_seeds))
        if not asked.only or variant in asked.only
    ]


def measure(request: Request, wanted: Sequence[Training]) -> Measured:
    """Make the runs that are not recorded, and judge all of them."""
    definition = request.definition
    recorded = record_missing(definition, wanted, request.data_root, request.observer)
    variants = tuple(registry.import_module(definition.name, "broken").VARIANTS)
    problems = evidence.find_problems(recorded, definition, variants)
    notes = [*_summarise(recorded, definition), *(f"problem: {problem}" for problem in problems)]
    return Measured(notes=notes, is_fine=not problems)


def _summarise(recorded: Evidence, definition: Definition) -> list[str]:
    """Return a line for each run, their hours, and the samples to target of the correct ones."""
    lines = [_describe_curve(curve, definition) for curve in recorded.curves]
    seconds = sum(curve.seconds for curve in recorded.curves)
    lines.append(f"{len(recorded.curves)} runs took {seconds / 3600:.1f} hours")
    usual = evidence.summarize_samples(recorded, definition)
    if usual and definition.kind == "train":
        fewest, median, most = usual
        lines.append(f"samples to target: fewest {fewest:,}, median {median:,}, most {most:,}")
    return [*lines, *_describe_margins(recorded, definition)]


def _describe_margins(recorded: Evidence, definition: Definition) -> list[str]:
    """Return how unlikely a correct seed misses, and how far the nearest broken run stays."""
    lines = []
    miss = margins.estimate_miss_probability(recorded, definition)
    if miss is not None:
        limit = "the budget" if definition.kind == "train" else "a target"
        seeds = len(margins.find_reaching(recorded, definition))
        lines.append(
            f"one more seed misses {limit} with a probability of {miss:.1%} "
            f"(Student's t, from {seeds} seeds)"
        )
    if near := margins.find_nearest_broken(recorded, definition):
        deviations = (
            f"{near.deviations:,.0f}" if near.deviations >= 10 else f"{near.deviations:.1f}"
        )
        lines.append(
            f"the nearest broken run, {near.variant} with seed {near.seed}, misses {near.metric} "
            f"by {deviations} standard deviations of the correct seeds "
            f"({near.value:.4g}, target {near.target:g})"
        )
    return lines


def _describe_curve(curve: Curve, definition: Definition) -> str:
    """Return the samples to target of a run and the best value of each metric."""
    unit = "samples" if definition.kind == "train" else "images"
    samples = curve.count_samples_to_target(definition)
    best = [
        f"{target.metric} {(min if target.better == 'lower' else max)(values):.4f}"
        for target in definition.quality
        if (values := [quality[target.metric] for _, quality in curve.evaluations])
    ]
    reached = f"reached after {samples:,} {unit}" if samples else "never reached"
    return (
        f"{curve.variant:<22} seed {curve.seed:<3} {reached:<30} best: {', '.join(best)}"
        f"  {curve.seconds:.0f} s"
    )


STUDY = Study(
    name="targets",
    help=Help(DESCRIPTION, EXAMPLES),
    options=(
        *options.offer_benchmark(),
        options.Option(
            "--seeds",
            {"type": int, "metavar": "N",
             "help": "seeds 1 … N of the correct model (default: 10 at mini, 5 at full scale)"},
            least=1,
        ),
        options.Option(
            "--broken-seeds",
            {"type": int, "default": 2, "metavar": "N",
             "help": "seeds 1 … N of each broken variant (default: 2)"},
            least=0,
        ),
        options.Option(
            "--only",
            {"nargs": "+", "metavar": "VARIANT",
             "help": "make only these runs: those of the correct model (correct) or of broken "
             "variants"},
        ),
        options.DATA,
    ),
    arms=list_trainings,
    measure=measure,
)  # fmt: skip
