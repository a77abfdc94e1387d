"""What is measured at one number of ranks, what follows from it, and its record. Framework-free.

In every turn the same ranks train in different ways, one after the other, so that other work on the
machine disturbs all of them alike:

alone
    The first rank trains by itself while the others wait.
together
    All ranks train one network, as a run does.
independent
    Every rank trains a network of its own at the same time. Nothing is communicated, so this is
    what the machine gives to so many ranks at most: they share memory and caches.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cepheid.measure.engine.noise import INPUTS
from cepheid.measure.engine.recorded_points import describe_machine
from cepheid.measure.engine.turns import configure_open, find_middle_half, format_spread
from cepheid.reference.session.observer import Observer, prepare_data
from cepheid.reference.session.request import replace_old_keys
from cepheid.rules import definition as definitions

if TYPE_CHECKING:
    from cepheid.reference.run.config import RunConfig
    from cepheid.reference.run.execution import Execution
    from cepheid.reference.torch.ranks.distributed import TorchRanks

WEAK, STRONG = "weak", "strong"
ALONE, TOGETHER, INDEPENDENT = "alone", "together", "independent"

SHARES: Mapping[str, tuple[str, ...]] = {
    "input": ("data",),
    "compute": ("forward", "backward", "pipeline", "sampling", "decoding"),
    "communication": ("communication", "gather"),
    "update": ("update",),
}
"""What the tables call the phases of a step; all others are "other"."""

BATCH_SIZE = "global_batch_size"
SHARING = ("pipeline", "tensor_ranks")  # settings with which ranks share a model
PARTITIONS = "spatial_partitions"
COUNT = "accelerators_per_node"  # grows with the ranks of a point
BOUND = 0.95
"""Input binds where real data reach less than this share of the rate of synthetic data."""


@dataclass(frozen=True)
class Job:
    """One number of ranks to measure, with all that their processes need to know.

    ``batch_size`` is that of each rank, or with ``mode`` strong that of all ranks together. Each
    rank keeps to ``processors_per_rank`` processors of its own, also while it trains alone, so that
    the threads that read its data do not use those of the others; with 0 the launcher decides.
    """

    benchmark: str
    scale: str
    ranks: int
    mode: str
    inputs: tuple[str, ...]
    batch_size: int
    overrides: tuple[str, ...]
    data_root: Path
    rounds: int
    turn_seconds: float
    processors_per_rank: int = 0

    @property
    def place(self) -> str:
        """The name of its file below the folder."""
        return str(self.ranks)

    def __str__(self) -> str:
        return f"{self.ranks} rank{'s' if self.ranks > 1 else ''}"

    @property
    def global_batch_size(self) -> int:
        """The samples of a step of all ranks together."""
        return self.batch_size if self.mode == STRONG else self.batch_size * self.ranks

    def configure(self, execution: "Execution | None" = None) -> "RunConfig":
        """Return the configuration of all ranks together.

        ``execution`` has what was chosen for one rank; the settings that the definition adds, such
        as how images are partitioned, stay those of the ranks. Ranks that share a model compute
        eagerly, in micro-batches of their own. Raises UserError for wrong settings.
        """
        current, _ = replace_old_keys(self.overrides)
        config = self._configure(self.global_batch_size, current)
        if execution is None:
            return config
        asked = config.execution
        execution = replace(execution, own=asked.own)
        if any(asked.own.get(setting, "1") != "1" for setting in SHARING):
            execution = replace(execution, compile=asked.compile, micro_batch=asked.micro_batch)
        return replace(config, execution=execution)

    def configure_alone(self, execution: "Execution | None" = None) -> "RunConfig":
        """Return the configuration of a rank by itself, which shares images and model with none."""
        shared = tuple(f"{setting}=" for setting in (PARTITIONS, *SHARING))
        current, _ = replace_old_keys(self.overrides)
        overrides = [each for each in current if not each.startswith(shared)]
        config = self._configure(self.batch_size, overrides)
        return replace(config, execution=execution) if execution else config

    def _configure(self, batch_size: int, overrides: Sequence[str]) -> "RunConfig":
        definition = definitions.load(self.benchmark, self.scale)
        if generation := definition.generation:  # a step makes so many images
            generation = replace(generation, counts=(batch_size,), repetitions=(1,))
            definition = replace(definition, generation=generation)
        else:
            overrides = [*overrides, f"{BATCH_SIZE}={batch_size}"]
        return configure_open(definition, overrides=overrides, data_root=self.data_root)

    def prepare(self, ranks: "TorchRanks", observer: Observer) -> dict[str, Any]:
        """Prepare the data, if any are read, and return what all points have in common.

        Raises UserError for settings that the benchmark does not have.
        """
        from cepheid.reference.machine import system

        config = self.configure()
        if "real" in self.inputs:
            prepare_data(config.definition, config.data_root, observer)
        facts = describe_machine(config, self.overrides, system.describe("local", ranks))
        hardware = {key: value for key, value in facts["system"].items() if key != COUNT}
        own = ("mode", "inputs", "batch_size", "rounds", "turn_seconds", "processors_per_rank")
        return {
            **facts,
            "system": hardware,
            **{key: getattr(self, key) for key in own},
            "inputs": list(self.inputs),
        }


@dataclass(frozen=True)
class Spread:
    """The median of several turns, and the middle half of them."""

    median: float
    first_quartile: float
    third_quartile: float

    def format(self, form: str = ".2f") -> str:
        """Return the median with the middle half in brackets."""
        return format_spread(self.median, (self.first_quartile, self.third_quartile), form)

    __str__ = format


def spread(values: Sequence[float]) -> Spread:
    """Return median and quartiles."""
    first, third = find_middle_half(values)
    return Spread(statistics.median(values), first, third)


@dataclass(frozen=True)
class Point:
    """The measurement with one number of ranks.

    ``seconds`` has the seconds of a step turn by turn, by arm and input, such as "together, real".
    ``phases_ms`` are the mean milliseconds of the phases of a profiled step over all ranks.
    ``batch_size`` is that of all ranks together,
    ``alone_batch_size`` that of the first rank alone.
    """

    ranks: int
    batch_size: int
    alone_batch_size: int
    seconds: Mapping[str, tuple[float, ...]]
    phases_ms: Mapping[str, float]
    implementation: Mapping[str, Any]
    load_before: float

    @property
    def place(self) -> str:
        """The name of its file below the folder."""
        return str(self.ranks)

    def __str__(self) -> str:
        rate, kind = spread(self.rates(TOGETHER, self.inputs[0])), self.inputs[0]
        return f"{rate.median:,.4g} samples/s, efficiency {self.efficiency(kind)}"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The kinds of input that were measured, real data first."""
        return tuple(kind for kind in INPUTS if name_arm(TOGETHER, kind) in self.seconds)

    def rates(self, arm: str, kind: str) -> tuple[float, ...]:
        """Return samples per second of all ranks together, turn by turn."""
        batch = self.batch_size if arm == TOGETHER else self.alone_batch_size
        ranks = self.ranks if arm == INDEPENDENT else 1
        return tuple(ranks * batch / seconds for seconds in self.seconds[name_arm(arm, kind)])

    def efficiency(self, kind: str) -> Spread:
        """Return the rate of all ranks over that of the first one alone times their number."""
        return self._over_alone(TOGETHER, kind)

    def ceiling(self) -> Spread | None:
        """Return the efficiency of independent ranks, or None where it was not measured."""
        kind = self.inputs[-1]
        if name_arm(INDEPENDENT, kind) not in self.seconds:
            return None
        return self._over_alone(INDEPENDENT, kind)

    def _over_alone(self, arm: str, kind: str) -> Spread:
        pairs = zip(self.rates(arm, kind), self.rates(ALONE, kind), strict=True)
        return spread([rate / alone / self.ranks for rate, alone in pairs])

    def real_over_synthetic(self) -> Spread | None:
        """Return the rate with real data over that with synthetic, if both were measured."""
        if len(self.inputs) < len(INPUTS):
            return None
        pairs = zip(*(self.rates(TOGETHER, kind) for kind in INPUTS), strict=True)
        return spread([real / synthetic for real, synthetic in pairs])

    @property
    def is_input_bound(self) -> bool | None:
        """Whether three quarters of the turns say that input binds; None if it is not known."""
        ratio = self.real_over_synthetic()
        return None if ratio is None else ratio.third_quartile < BOUND

    @property
    def shares(self) -> dict[str, float]:
        """The shares of a profiled step, by the words of the tables."""
        total = sum(self.phases_ms.values())
        named = {
            name: sum(self.phases_ms.get(phase, 0.0) for phase in phases) / total
            for name, phases in SHARES.items()
        }
        return {**named, "other": 1 - sum(named.values())}


def name_arm(arm: str, kind: str) -> str:
    """Return the name under which the turns of an arm with a kind of input are kept."""
    return f"{arm}, {kind}"
