"""The execution settings of a run: how the arithmetic is done, which leaves the mathematics alone.

Logs and command lines hold texts. Each is parsed here, once, into a typed value: what the ranks of
a training share is ``Execution.parallelism``, and ``Execution.read`` fills the record of settings
that a single benchmark has.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, Self, TypeVar, cast

from cepheid.reference.run.hyperparameters import parse_hyperparameters
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError, did_you_mean
from cepheid.rules.host import find_backend

A_NUMBER = "a number"  # among the choices of a setting
LARGEST_NUMBER, MOST_SAMPLES = 1024, 10**9
USUAL_MICRO_BATCHES = 4

WeightUpdate = Literal["replicated", "sharded", "overlapped"]
Schedule = Literal["1f1b", "gpipe"]
Settings = TypeVar("Settings")

EXECUTION_CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "precision": ("auto", "fp32", "bf16"),
        "compile": ("auto", "on", "off"),
        "threads": ("auto", A_NUMBER),
    }
)
TRAINING_CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"micro_batch": ("auto", "whole", A_NUMBER)}
)
COMMON = (*EXECUTION_CHOICES, *TRAINING_CHOICES)
KERAS_COMPILE: Mapping[str, tuple[str, ...]] = MappingProxyType({"jax": ("on",)})
"""What Keras can do on JAX. Of the settings of a definition, which are torch's, it has
``compile`` only."""
GRAPHS = "graphs"
"""A way of torch alone: the device repeats each pass as one graph, which is launched once."""
TF32 = "tf32"
"""A precision of torch alone: float32 whose products round as NVIDIA's GPUs do at best speed."""
USUAL, SEARCHED = "usual", "searched"
"""Kernels of convolutions: the library chooses, or times all of them at the first call."""
GENERATION_CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"parts_at_once": ("auto", A_NUMBER)}
)
"""Only on torch: how many parts of the images are made at once, each on one thread."""


@dataclass(frozen=True)
class AllReduce:
    """How ranks sum gradients: ``flat``, ``two_level``, ``mesh`` or ``mesh:4``.

    ``rows`` are those of a mesh; None stands for the divisor of the ranks nearest below their
    square root.
    """

    way: Literal["flat", "two_level", "mesh"] = "flat"
    rows: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the value of ``all_reduce=TEXT``. Raises UserError for another form."""
        way, colon, rows = text.partition(":")
        if colon and (way != "mesh" or not _is_number(rows)):
            raise UserError(
                f"--set all_reduce={text}: only mesh has a number of rows; fix: write mesh or "
                f"mesh:ROWS with a number from 1 to {LARGEST_NUMBER:,}, e.g. all_reduce=mesh:4"
            )
        return cls(cast(Any, way), int(rows) if colon else None)

    @staticmethod
    def describe(choices: Sequence[str]) -> str:
        """Return the texts that a benchmark with these choices knows."""
        return ", ".join("mesh, mesh:ROWS" if way == "mesh" else way for way in choices)

    def __str__(self) -> str:
        return self.way if self.rows is None else f"{self.way}:{self.rows}"


@dataclass(frozen=True)
class Grid:
    """The parts of an image: ``rows`` along its height and ``columns`` along its width."""

    rows: int = 1
    columns: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the grid of an execution setting: ``4`` is 4 rows, ``2x2`` 2 rows by 2 columns."""
        rows, _, columns = text.partition("x")
        return cls(int(rows), int(columns or 1))

    @property
    def parts(self) -> int:
        """The number of ranks that share an image."""
        return self.rows * self.columns

    def check(self, height: int, width: int) -> None:
        """Raise UserError if an image of this size has fewer rows or columns than parts."""
        for parts, pixels, what in ((self.rows, height, "rows"), (self.columns, width, "columns")):
            if parts > pixels:
                raise UserError(
                    f"spatial_partitions: images of {pixels} {what} cannot be split into {parts} "
                    f"parts; choose {pixels} parts or fewer, or larger images"
                )

    def __str__(self) -> str:
        return str(self.rows) if self.columns == 1 else f"{self.rows}x{self.columns}"


@dataclass(frozen=True)
class Pipelining:
    """How consecutive ranks share the layers of a model: ``4:1f1b:8``, or ``1`` for not at all.

    A batch flows through the ``stages`` in ``micro_batches``, in the order of the ``schedule``.
    """

    stages: int = 1
    schedule: Schedule = "1f1b"
    micro_batches: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the value of ``pipeline=TEXT``; ``4`` stands for ``4:1f1b:4``.

        Raises UserError for another form, or if the micro-batches cannot fill the stages.
        """
        form = re.fullmatch(r"(\d{1,4})(?::(1f1b|gpipe))?(?::(\d{1,4}))?", text)
        stages, schedule, micro_batches = form.groups() if form else (None, None, None)
        if stages == "1" and (schedule, micro_batches) == (None, None):
            return cls()
        if not all(_is_number(count) for count in (stages, micro_batches or "1")) or stages == "1":
            raise UserError(
                f"--set pipeline={text}: expected STAGES:SCHEDULE:MICRO_BATCHES with 2 stages or "
                "more and the schedule 1f1b or gpipe; fix: write e.g. pipeline=4:1f1b:8, or "
                "pipeline=1 for none"
            )
        count = int(cast(str, stages))
        parsed = cls(
            count,
            cast(Schedule, schedule or "1f1b"),
            int(micro_batches or max(USUAL_MICRO_BATCHES, count)),
        )
        if parsed.schedule == "1f1b" and parsed.micro_batches < count:
            raise UserError(
                f"--set pipeline={text}: {parsed.micro_batches} micro-batches cannot fill {count} "
                f"stages; fix: set pipeline={count}:1f1b:{count} or more, or pipeline={count}:gpipe"
                f":{parsed.micro_batches}"
            )
        return parsed

    @staticmethod
    def describe(choices: Sequence[str]) -> str:
        """Return the texts that a benchmark with these numbers of stages knows."""
        return f"{', '.join(choices)}; also STAGES:SCHEDULE:MICRO_BATCHES, e.g. 4:1f1b:8, 2:gpipe:4"

    def __str__(self) -> str:
        return "1" if self.stages == 1 else f"{self.stages}:{self.schedule}:{self.micro_batches}"


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """How the ranks of a training on torch share the work.

    Each field is an execution setting. One that a definition does not have keeps its default.
    """

    weight_update: WeightUpdate = "replicated"
    all_reduce: AllReduce = AllReduce()
    spatial_partitions: Grid = Grid()
    pipeline: Pipelining = Pipelining()
    tensor_ranks: int = 1


@dataclass(frozen=True)
class Execution:
    """How the arithmetic is done: free in both divisions, and written to the log.

    Autotuning replaces ``auto`` by what is fastest on this machine; ``because`` then has the reason
    for each setting. ``micro_batch`` is the number of samples that a rank takes at once in training
    on torch; ``auto`` becomes the largest one that fits into memory. ``own`` has the texts of the
    settings that only some benchmarks have, as they are logged: those of the definition, those of
    generation, and the variants that were chosen in the open division. Nobody asks for
    ``convolutions``: they are measured where a device has a choice.
    """

    precision: str = "auto"
    compile: str = "auto"
    threads: str = "auto"
    because: Mapping[str, str] = field(default_factory=dict)
    own: Mapping[str, str] = field(default_factory=dict)
    micro_batch: str = "auto"
    convolutions: str = USUAL

    @cached_property
    def parallelism(self) -> Parallelism:
        """How the ranks share the work."""
        return self.read(Parallelism)

    def read(self, kind: type[Settings]) -> Settings:
        """Return the dataclass ``kind``, whose fields are settings of one benchmark."""
        return parse_hyperparameters(kind, self.own)

    def with_setting(self, setting: str, value: str, reason: str = "") -> "Execution":
        """Return the same with another value of one setting, and the reason for it, if any."""
        because = {**self.because, setting: reason} if reason else self.because
        if setting in self.own:
            return replace(self, because=because, own={**self.own, setting: value})
        changes: dict[str, Any] = {setting: value, "because": because}
        return replace(self, **changes)


def add_switches(definition: Definition, switches: Mapping[str, Sequence[str]]) -> Definition:
    """Return the definition with settings that only a study compares, each with its choices."""
    more = {key: tuple(choices) for key, choices in switches.items()}
    return replace(definition, execution={**definition.execution, **more})


def list_choices(definition: Definition, framework: str) -> Mapping[str, Sequence[str]]:
    """Return the execution settings of a benchmark on a framework, with the choices of each.

    The first choice is the default.
    """
    if framework != "torch":
        ways = definition.execution.get("compile", EXECUTION_CHOICES["compile"])
        return {**EXECUTION_CHOICES, "compile": KERAS_COMPILE.get(find_backend(), ways)}
    more = TRAINING_CHOICES if definition.kind == "train" else GENERATION_CHOICES
    choices = {**EXECUTION_CHOICES, **more, **definition.execution}
    ways = (*choices["compile"], *((GRAPHS,) if definition.kind == "train" else ()))
    return {**choices, "precision": (*choices["precision"], TF32), "compile": ways}


def make_execution(
    choices: Mapping[str, Sequence[str]], chosen: Mapping[str, str], variants: Mapping[str, str]
) -> Execution:
    """Return the ``chosen`` settings, with the default of each other one in ``choices``."""
    texts = {key: chosen.get(key, each[0]) for key, each in choices.items()}
    own = {key: text for key, text in texts.items() if key not in COMMON}
    return Execution(
        precision=texts["precision"],
        compile=texts["compile"],
        threads=texts["threads"],
        own={**own, **variants},
        micro_batch=texts.get("micro_batch", "whole"),
    )


def parse_choice(key: str, text: str, choices: Sequence[str]) -> str:
    """Return the text of a setting in its one form. Raises UserError for none of ``choices``."""
    kind = _STRUCTURED.get(key)
    if kind and text.partition(":")[0] in choices:
        return str(kind.parse(text))
    largest = _find_largest(key)
    if text not in choices and not (A_NUMBER in choices and _is_number(text, largest)):
        known = describe_choices(key, choices)
        guess = did_you_mean(text, choices)
        raise UserError(f"--set {key}={text}: expected one of {known}{guess}")
    return text


def describe_choices(key: str, choices: Sequence[str]) -> str:
    """Return the choices of a setting for a reader."""
    if key in _STRUCTURED:
        return _STRUCTURED[key].describe(choices)
    numbers = {A_NUMBER: f"a number from 1 to {_find_largest(key):,}"}
    return ", ".join(numbers.get(choice, choice) for choice in choices)


_STRUCTURED: Mapping[str, type[AllReduce] | type[Pipelining]] = MappingProxyType(
    {"all_reduce": AllReduce, "pipeline": Pipelining}
)


def _find_largest(key: str) -> int:
    return MOST_SAMPLES if key == "micro_batch" else LARGEST_NUMBER


def _is_number(text: str | None, largest: int = LARGEST_NUMBER) -> bool:
    """Return whether a text is a whole number from 1 to ``largest``."""
    return text is not None and text.isdecimal() and 1 <= int(text[:20]) <= largest
