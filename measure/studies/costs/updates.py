"""Measure what an update costs with an optimizer, by the steps that made it fast in its paper.

``declared.py`` says which settings are timed; ``inverses.py`` times the inverses of K-FAC alone.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cepheid.benchmarks.registry import import_module
from cepheid.measure.engine.noise import NO_DATA, REAL
from cepheid.measure.engine.phases import profile_steps
from cepheid.measure.engine.turns import (
    Timing,
    configure_open,
    divide,
    fit_steps,
    make_task,
    take_steps,
    time_in_turns,
    time_steps,
)
from cepheid.measure.studies import epochs
from cepheid.measure.studies.costs import inverses
from cepheid.measure.studies.costs.declared import Costs, Step
from cepheid.measure.studies.costs.inverses import find_kfac
from cepheid.measure.studies.speed.profiles import profile_kernels
from cepheid.reference.run.execution import add_switches
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError

if TYPE_CHECKING:
    from cepheid.reference.run.config import RunConfig
    from cepheid.reference.torch.ranks.distributed import TorchRanks

UPDATES = 10  # of each turn
PHASES = (
    "data", "forward", "backward", "factors", "communication", "inverse", "update",
)  # fmt: skip


@dataclass(frozen=True)
class Update:
    """What was measured for one step.

    The median ``milliseconds`` of an update, and of the baseline's in turns with it; the quartiles
    of the ratios of each turn; ``phases_ms`` for each rank; ``sent_bytes`` by all ranks in an
    update, by what was sent; ``counts`` of what the optimizer did in the timed updates; the bytes
    of ``memory`` that an early update needs, of the baseline and of the step (``weigh_task``).
    """

    name: str
    milliseconds: float
    baseline_milliseconds: float
    ratio_quartiles: tuple[float, float]
    phases_ms: tuple[Mapping[str, float], ...]
    sent_bytes: Mapping[str, int]
    counts: Mapping[str, float]
    memory: tuple[int, int]

    @property
    def ratio(self) -> float:
        """The time of an update over that of the baseline."""
        return self.milliseconds / self.baseline_milliseconds


def count_refreshes(task: Any) -> Mapping[str, float]:
    """Return the refreshes of factors, and how many there were if none were stale."""
    kfac = find_kfac(task)
    intervals = kfac.intervals.values()
    return {
        "refreshes": sum(each.refreshes for each in intervals),
        "possible_refreshes": kfac.curvature.steps * len(intervals),
    }


def count_bytes(task: Any) -> Mapping[str, int]:
    """Return the bytes that this rank sent for K-FAC in the last update, by purpose and level.

    Only several nodes have levels: "factors, between nodes".
    """
    sent = getattr(find_kfac(task), "bytes_sent", {})
    return {
        purpose if level == "all" else f"{purpose}, {level}": count
        for (purpose, level), count in sent.items()
    }


@dataclass(frozen=True)
class Setup:
    """How costs are measured: turns of each side, updates before the first turn, settings."""

    definition: Definition
    costs: Costs
    overrides: Sequence[str]
    data_root: Path
    rounds: int
    settle: int
    inputs: str = REAL

    def configure(self, *overrides: str) -> "RunConfig":
        """Return the configuration with more settings. Raises UserError for wrong ones."""
        settings = [*self.costs.overrides, *self.overrides, *overrides]
        definition = add_switches(self.definition, self.costs.switches)
        return configure_open(definition, overrides=settings, data_root=self.data_root)

    def choose_batch(self, ranks: int) -> "Setup":
        """Return the same with the batch of so many ranks, unless the settings name one."""
        if self.costs.samples_per_rank is None:
            return self
        batch = f"global_batch_size={self.costs.samples_per_rank * ranks}"
        return replace(self, overrides=(batch, *self.overrides))

    def make_settled_task(self, step: Step, ranks: "TorchRanks") -> tuple[Any, int]:
        """Return a task with a step's settings that has made updates, and the bytes it needs."""
        from cepheid.measure.engine.byte_counts import weigh_task  # here: `--help` loads no torch
        from cepheid.reference.torch.devices.kinds import find_device

        other = None
        if step.network:
            other = import_module(self.definition.name, "comparison").NETWORKS[step.network]
        config = self.configure(*step.overrides)
        make = partial(make_task, config, ranks, other, inputs=self.inputs)
        task, memory = weigh_task(make, find_device(ranks.device))
        take_steps(task, self.settle)
        return task, memory

    def describe(self) -> dict[str, Any]:
        """Return what was measured, for the JSON file."""
        return {
            "benchmark": self.definition.name,
            "scale": self.definition.scale,
            "definition_digest": self.definition.digest,
        }


@dataclass(frozen=True)
class MeasuredCosts:
    """All that was measured; ``parts`` are the facts of ``inverses.measure``."""

    ranks: int
    global_batch_size: int
    implementation: Mapping[str, Any]
    baseline_phases_ms: Sequence[Mapping[str, float]]
    updates: Sequence[Update]
    parts: Mapping[str, Any]
    times_to_target: Sequence[Mapping[str, Any]] = ()

    def as_json(self, setup: Setup) -> dict[str, Any]:
        """Return everything for the JSON file."""
        return {
            **setup.describe(),
            "ranks": self.ranks,
            "global_batch_size": self.global_batch_size,
            "implementation": self.implementation,
            "baseline": {"name": setup.costs.baseline.name, "phases_ms": self.baseline_phases_ms},
            "updates": [asdict(update) | {"ratio": update.ratio} for update in self.updates],
            **self.parts,
            "times_to_target": self.times_to_target,
        }


def measure_costs(setup: Setup, ranks: "TorchRanks", say: Callable[[str], None]) -> MeasuredCosts:
    """Measure every step in turns with the baseline, then the parts of the optimizer alone."""
    setup = setup.choose_batch(ranks.world_size)
    nodes = ranks.world_size // ranks.ranks_per_node
    updates = []
    for step in setup.costs.steps:
        if step.needs_ranks <= ranks.world_size and step.needs_nodes <= nodes:
            say(f"measuring: {setup.costs.name(step)}")
            updates.append(measure_update(setup, step, ranks))
    say("measuring: inverses alone")
    parts = inverses.measure(make_task(setup.configure(), ranks, is_warm=False, inputs=NO_DATA))
    baseline, _ = setup.make_settled_task(setup.costs.baseline, ranks)
    _, phases = profile_updates(baseline, ranks, fit_steps(baseline, UPDATES))
    measured = MeasuredCosts(
        ranks.world_size,
        baseline.config.global_batch_size,
        dict(baseline.implementation()),
        phases,
        updates,
        parts,
    )
    times = _list_times_to_target(setup, measured) if ranks.is_first else ()
    return replace(measured, times_to_target=times)


def measure_update(setup: Setup, step: Step, ranks: "TorchRanks") -> Update:
    """Time updates in turns with the baseline's, then profile some."""
    baseline = setup.costs.baseline
    plain, least = setup.make_settled_task(baseline, ranks)
    task, most = setup.make_settled_task(step, ranks)
    updates_of_turn = fit_steps(task, UPDATES)
    counts: list[Mapping[str, float]] = []  # before each turn

    def time_ours() -> float:
        counts.append(count_refreshes(task))
        return time_steps(task, updates_of_turn)

    measures: dict[str, Callable[[], float]] = {
        baseline.name: partial(time_steps, plain, updates_of_turn),
        step.name: time_ours,
    }
    theirs, ours = time_in_turns(setup.rounds, measures)
    _, low, high = divide(ours, theirs)
    before = counts[1]  # the first turn does not count
    made = {name: total - before[name] for name, total in count_refreshes(task).items()}
    sent, phases = profile_updates(task, ranks, updates_of_turn)
    return Update(
        name=step.name,
        milliseconds=1000 * ours.median_seconds,
        baseline_milliseconds=1000 * theirs.median_seconds,
        ratio_quartiles=(low, high),
        phases_ms=tuple(phases),
        sent_bytes=sent,
        counts=made,
        memory=(least, most),
    )


def profile_updates(
    task: Any, ranks: "TorchRanks", updates: int
) -> tuple[Mapping[str, int], list[Mapping[str, float]]]:
    """Return the bytes that all ranks send in an update, by purpose, and each rank's phases."""
    sent: dict[str, int] = {}

    def add_bytes() -> None:
        for purpose, count in count_bytes(task).items():
            sent[purpose] = sent.get(purpose, 0) + count

    profile = profile_steps(task, updates, add_bytes)
    of_ranks = ranks.all_gather_object((sent, profile.phases_ms))
    totals = {
        purpose: round(sum(of_rank.get(purpose, 0) for of_rank, _ in of_ranks) / updates)
        for purpose in sent
    }
    return totals, [phases for _, phases in of_ranks]


def _list_times_to_target(setup: Setup, measured: MeasuredCosts) -> list[dict[str, Any]]:
    """Return updates and minutes to target of baseline and last step, if runs are recorded."""
    definition = setup.definition
    comparison = epochs.load_comparison(definition.name, definition.scale, setup.costs.comparison)
    runs = epochs.load_runs(definition, comparison)
    arms = [arm for arm in comparison.arms if arm.group == setup.costs.group]
    last, rows = measured.updates[-1], []
    for arm, milliseconds in ((arms[0], last.baseline_milliseconds), (arms[-1], last.milliseconds)):
        of_arm = [run.epochs for run in runs if run.arm == arm.name]
        needed = [count for count in of_arm if count]
        if needed:
            mean_epochs = statistics.mean(needed)
            updates = mean_epochs * definition.train_samples / measured.global_batch_size
            rows.append(
                {
                    "optimizer": arm.name,
                    "seeds": len(of_arm),
                    "reached": len(needed),
                    "epochs": mean_epochs,
                    "updates": updates,
                    "minutes": updates * milliseconds / 60_000,
                }
            )
    return rows


@dataclass(frozen=True)
class MeasuredRung:
    """The time of an update, its phases on this rank, and how much faster it is than others.

    ``speedup`` is over the rung before, ``speedup_in_all`` over the first one (``turns.divide``).
    ``memory`` is that of ``weigh_task``; ``kernel_seconds`` are those that an accelerator computes
    in an update; the rest is overhead.
    """

    name: str
    timing: Timing
    phases_ms: Mapping[str, float]
    speedup: tuple[float, float, float]
    speedup_in_all: tuple[float, float, float]
    memory: int
    kernel_seconds: float | None = None

    @property
    def overhead_ms(self) -> float | None:
        """The milliseconds of an update without kernels, None where processors compute."""
        if self.kernel_seconds is None:
            return None
        return 1000 * (self.timing.median_seconds - self.kernel_seconds)


@dataclass(frozen=True)
class MeasuredLadder:
    """All rungs that run here; ``left_out`` has the reasons why others do not."""

    rungs: tuple[MeasuredRung, ...]
    ranks: int
    global_batch_size: int
    threads: int
    left_out: Mapping[str, str]


def measure_ladder(setup: Setup, ranks: "TorchRanks", say: Callable[[str], None]) -> MeasuredLadder:
    """Build the task of each rung, time all of them in turns, then profile each."""
    setup = setup.choose_batch(ranks.world_size)
    tasks: dict[str, Any] = {}
    memory: dict[str, int] = {}
    left_out: dict[str, str] = {}
    for rung in setup.costs.ladder.rungs:
        say(f"building: {rung.name}")
        try:
            if rung.needs_accelerator and ranks.accelerator is None:
                raise UserError("processors are slow in it: it needs an accelerator")
            tasks[rung.name], memory[rung.name] = setup.make_settled_task(rung, ranks)
        except UserError as error:
            left_out[rung.name] = str(error)
    say("measuring all in turns")
    counts = {name: fit_steps(task, UPDATES) for name, task in tasks.items()}
    measures = {name: partial(time_steps, task, counts[name]) for name, task in tasks.items()}
    timings = time_in_turns(setup.rounds, measures)
    rungs = []
    for place, (timing, task) in enumerate(zip(timings, tasks.values(), strict=True)):
        task.use_execution(task.execution)  # threads belong to the process
        phases = profile_steps(task, counts[timing.label]).phases_ms
        faster = divide(timings[max(0, place - 1)], timing), divide(timings[0], timing)
        kernels = profile_kernels(task)
        busy = kernels.seconds if kernels.on == "device" else None
        needs = memory[timing.label]
        rungs.append(MeasuredRung(timing.label, timing, phases, *faster, needs, busy))
    first = next(iter(tasks.values()))
    threads = int(first.implementation()["threads_per_rank"])
    batch = first.config.global_batch_size
    return MeasuredLadder(tuple(rungs), ranks.world_size, batch, threads, left_out)
