"""Quality against staleness: the reference trained with gradients that are some updates old.

``benchmarks/<name>/staleness.json`` holds the quality curves, in the form of ``evidence.json``.
"""

from collections.abc import Mapping
from dataclasses import replace

from cepheid.benchmarks.registry import import_task
from cepheid.measure.engine.options import read_command
from cepheid.measure.engine.study import Measured, Request, Study
from cepheid.measure.engine.trainings import Training, record_each
from cepheid.measure.studies.epochs import Arm, Comparison, summarise
from cepheid.measure.studies.epochs_study import describe, draw_by_setting, list_columns
from cepheid.reference.run.config import RunConfig
from cepheid.reference.session.frameworks import find_create

FILE = "staleness.json"
TITLE = "asynchronous SGD, simulated, by the age of the gradients in updates"


def list_arms(request: Request) -> Mapping[tuple[int, int], Training]:
    """Return the runs by delay and seed, all delays of a seed after each other."""
    request.require_training(", so it has no gradients to delay")
    request.require_extras()
    from cepheid.reference.torch.parallel.stale import delay_gradients

    create, asked = find_create(import_task(request.definition, "torch")), request.arguments
    arms = {}
    for seed in sorted(set(asked.seeds)):
        config = request.configure(seed)
        for delay in sorted(set(asked.delays)):
            variant, source = name_variant(delay, config), delay_gradients(create, delay)
            arms[delay, seed] = Training(name_delay(delay), variant, config, source)
    return arms


def name_delay(delay: int) -> str:
    """Return the name of the runs with gradients of that age."""
    return f"delay {delay}"


def name_variant(delay: int, config: RunConfig) -> str:
    """Return the name of a variant: its delay and the hyperparameters that are not the default.

    Execution settings, which leave the mathematics alone, are not part of it.
    """
    rules = config.definition.hyperparameters
    chosen = config.hyperparameters.items()
    changed = [f"{key}={value}" for key, value in chosen if value != rules[key].default]
    return ", ".join([name_delay(delay), *changed])


def measure(request: Request, wanted: Mapping[tuple[int, int], Training]) -> Measured:
    """Make the runs that are not recorded; return all by delay."""
    curves = record_each(request, wanted, FILE)
    runs = [
        replace(summarise(curve, request.definition), arm=name_delay(delay))
        for (delay, _), curve in curves.items()
    ]
    delays = sorted({delay for delay, _ in wanted})
    arms = tuple(Arm(name_delay(delay), ()) for delay in delays)
    return describe(request, Comparison("staleness", TITLE, arms=arms), runs)


STUDY = Study(
    "staleness", list_arms, measure, list_columns, draw_by_setting, **read_command("staleness")
)
