"""Benchmark definitions: every fact about a benchmark that a rule or a trainer needs, once.

``benchmarks/<name>/benchmark.yaml`` holds the facts, ``load(name, scale)`` merges the scale's own
facts over the common ones, validates them against ``schemas/benchmark.schema.json`` and returns a
frozen ``Definition``. The directory listing of ``benchmarks/`` is the registry.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import yaml

from rules.errors import UserError, did_you_mean
from rules.events import Kind

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "benchmarks"
BENCHMARKS_VARIABLE = "CEPHEID_BENCHMARKS"  # of the environment, for tests
SCHEMAS = Path(__file__).resolve().parent / "schemas"

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Of a submitter or a system (rule S1)."""

Value = bool | int | float | str

RELATION_TOLERANCE = 1e-9  # 0.1 × 3 is not 0.3
EVAL_OFFSET = "eval_offset_epochs"  # the hyperparameter that moves the schedule (rule T8)


@dataclass(frozen=True)
class QualityTarget:
    """One metric that must reach its target, ``better`` says in which direction."""

    metric: str
    better: Literal["lower", "higher"]
    target: float

    def holds(self, value: float) -> bool:
        """True when ``value`` is finite and at least as good as the target."""
        if not math.isfinite(value):
            return False
        return value <= self.target if self.better == "lower" else value >= self.target

    def __str__(self) -> str:
        return f"{self.metric} {'<=' if self.better == 'lower' else '>='} {self.target:g}"


@dataclass(frozen=True)
class Hyperparameter:
    """What the closed division allows for one value; ``default`` is what the reference uses.

    ``fixed``: only the default. Otherwise free between ``minimum`` and ``maximum`` (inclusive,
    ``None`` is unbounded) or among ``choices``. ``min_of`` and ``max_of`` bound it by other
    hyperparameters: the value is at least, or at most, their value times the factor.
    """

    name: str
    default: Value
    fixed: bool = False
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[Value, ...] = ()
    min_of: Mapping[str, float] = field(default_factory=dict)
    max_of: Mapping[str, float] = field(default_factory=dict)

    def why_not(self, value: object) -> str | None:
        """What is wrong with ``value`` in the closed division, or None: ``must be adam``."""
        wrong_type = self.why_wrong_type(value)
        if wrong_type:
            return wrong_type
        if self.fixed and value != self.default:
            return f"must be {self.default}"
        if self.choices and value not in self.choices:
            return f"must be one of {', '.join(map(str, self.choices))}"
        if isinstance(value, int | float):
            if self.minimum is not None and value < self.minimum:
                return f"must be at least {self.minimum:g}"
            if self.maximum is not None and value > self.maximum:
                return f"must be at most {self.maximum:g}"
        return None

    def why_not_with(self, value: float, others: Mapping[str, object]) -> str | None:
        """What is wrong with ``value`` beside the values of other hyperparameters, or None.

        One that is missing or no number bounds nothing here: it is wrong by itself.
        """
        for bounds, word, sign in ((self.min_of, "at least", 1), (self.max_of, "at most", -1)):
            for name, factor in bounds.items():
                other = others.get(name)
                if isinstance(other, bool) or not isinstance(other, int | float):
                    continue
                bound = factor * other
                tolerance = RELATION_TOLERANCE * abs(bound)
                if sign * (bound - value) > tolerance:
                    times = "" if factor == 1 else f"{factor:g} × "
                    return f"must be {word} {times}{name}, that is {bound:g}"
        return None

    def why_wrong_type(self, value: object) -> str | None:
        """Both divisions: a value has the type of the default (an integer may pass as a float)."""
        expected: type | tuple[type, ...] = type(self.default)
        if expected is float:
            expected = (int, float)
        if not isinstance(value, expected) or (
            isinstance(value, bool) and not isinstance(self.default, bool)
        ):
            return f"must be of type {type(self.default).__name__}"
        if isinstance(value, float) and not math.isfinite(value):
            return "must be finite"
        return None


@dataclass(frozen=True)
class Timing:
    """What the clock allows: time for initialisation, cadence of evaluation, budget.

    A benchmark that generates has neither cadence nor budget: they are 0.
    """

    init_minutes_max: float
    eval_every_samples: int = 0
    max_samples: int = 0


@dataclass(frozen=True)
class Generation:
    """What a benchmark that generates times (rule T24): ``repetitions[i]`` times ``counts[i]``
    images at a time, each after a warm-up with ``warm_up_images``."""

    counts: tuple[int, ...]
    repetitions: tuple[int, ...]
    warm_up_images: int

    @property
    def images(self) -> int:
        """In all repetitions together."""
        return sum(n * times for n, times in zip(self.counts, self.repetitions, strict=True))


@dataclass(frozen=True)
class Runs:
    """How many runs a result holds, and how many of them the olympic mean drops at each end."""

    required: int
    drop_fastest: int
    drop_slowest: int


@dataclass(frozen=True)
class Block:
    """A stretch of training between two evaluations.

    ``first_sample`` is the number of samples trained before it, ``samples`` the total after it.
    """

    number: int
    first_sample: int
    samples: int


@dataclass(frozen=True)
class Definition:
    """One benchmark at one scale. ``model`` and ``data`` hold what only its own task reads.

    ``bounds`` are the values that a metric can have at all; ``data_digest`` is that of the dataset
    as the reference prepares it. ``generation`` is there where ``kind`` is ``generate``.
    ``execution`` are settings that the reference has for this benchmark beside the usual ones, none
    of which changes the mathematics, with their choices, the default first.
    """

    name: str
    title: str
    scale: str
    kind: Kind
    model: Mapping[str, Any]
    data: Mapping[str, Any]
    quality: tuple[QualityTarget, ...]
    reported: tuple[str, ...]
    bounds: Mapping[str, tuple[float, float]]
    timing: Timing
    runs: Runs
    hyperparameters: Mapping[str, Hyperparameter]
    generation: Generation | None = None
    provisional: str | None = None
    data_digest: str | None = None
    execution: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    digest: str = field(default="", compare=False)

    @property
    def train_samples(self) -> int:
        """Samples in the training set."""
        return int(self.data["train_samples"])

    @property
    def evaluation_samples(self) -> int:
        """Samples in the evaluation set; every evaluation reads all of them."""
        return int(self.data["evaluation_samples"])

    def parameters(self, hyperparameters: Mapping[str, object]) -> int:
        """Trainable parameters of the model that these hyperparameters make; what is not among
        them has its default."""
        for name, counts in self.model.get("parameters_with", {}).items():
            chosen = hyperparameters.get(name)
            if isinstance(chosen, str) and chosen in counts:
                return int(counts[chosen])
        return int(self.model["parameters"])

    def reached(self, quality: Mapping[str, float]) -> bool:
        """True when every quality target holds (rule T9)."""
        return all(target.holds(quality[target.metric]) for target in self.quality)

    def schedule(self, global_batch_size: int, eval_offset_epochs: int = 0) -> Iterator[Block]:
        """The blocks of a run (rule T8).

        Each ends with the first whole batch that completes the next multiple of
        ``timing.eval_every_samples``, counted from ``eval_offset_epochs`` epochs on, the first one
        at that offset if it is not 0; the last one completes ``timing.max_samples``.
        """
        done, number, every = 0, 0, self.timing.eval_every_samples
        offset = eval_offset_epochs * self.train_samples
        while done < self.timing.max_samples:
            number += 1
            goal = ((done - offset) // every + 1) * every + offset
            goal = min(goal, self.timing.max_samples)
            end = -(-goal // global_batch_size) * global_batch_size
            yield Block(number, done, end)
            done = end


def locate_benchmarks() -> Path:
    """Return the folder of the definitions: ``$CEPHEID_BENCHMARKS``, else this checkout's.

    The code of a benchmark is always this checkout's.
    """
    return Path(os.environ.get(BENCHMARKS_VARIABLE) or BENCHMARKS)


def names() -> tuple[str, ...]:
    """The benchmarks, in alphabetical order: every folder with a ``benchmark.yaml``."""
    folder = locate_benchmarks()
    return _names(folder, folder.stat().st_mtime_ns)


@cache
def _names(folder: Path, changed_ns: int) -> tuple[str, ...]:
    """Asked for several times for each log, so the folder is listed only when it has changed."""
    return tuple(sorted(path.parent.name for path in folder.glob("*/benchmark.yaml")))


def scales(name: str) -> tuple[str, ...]:
    """The scales that a benchmark defines. Raises UserError for an unknown name."""
    return tuple(_document(locate_benchmarks(), name)["scales"])


def load(name: str, scale: str) -> Definition:
    """The definition of a benchmark at a scale. Raises UserError for an unknown name or scale."""
    document = _document(locate_benchmarks(), name)
    if scale not in document["scales"]:
        known = ", ".join(document["scales"])
        raise UserError(
            f'{name} has no scale "{scale}"{did_you_mean(scale, document["scales"])} (all: {known})'
        )
    return _parsed(document, scale)


def parse(document: Mapping[str, Any], scale: str) -> Definition:
    """A validated ``benchmark.yaml`` document, at one of its scales, as a Definition."""
    common = {key: value for key, value in document.items() if key != "scales"}
    facts = _merged(common, document["scales"][scale])
    targets = facts.pop("targets")
    metrics = [entry["metric"] for entry in facts["quality"]]
    if sorted(targets) != sorted(metrics):
        raise UserError(
            f"{facts['name']}, scale {scale}: targets are given for {sorted(targets)}, "
            f"but the quality metrics are {sorted(metrics)}"
        )
    known = facts["hyperparameters"]
    for name, counts in facts["model"].get("parameters_with", {}).items():
        for choice in counts:
            if choice not in known.get(name, {}).get("choices", ()):
                raise UserError(
                    f"{facts['name']}, scale {scale}: parameters_with counts those of {name} "
                    f"{choice}, which is none of its choices"
                )
    for name, rule in known.items():
        for other in {**rule.get("min_of", {}), **rule.get("max_of", {})}:
            if other not in known:
                raise UserError(
                    f"{facts['name']}: {name} is bounded by {other}, which is no hyperparameter"
                    f"{did_you_mean(other, known)}"
                )
    return Definition(
        name=facts["name"],
        title=facts["title"],
        scale=scale,
        kind=facts["task"]["kind"],
        model=_frozen(facts["model"]),
        data=_frozen(facts["data"]),
        quality=tuple(
            QualityTarget(entry["metric"], entry["better"], float(targets[entry["metric"]]))
            for entry in facts["quality"]
        ),
        reported=tuple(facts.get("reported", ())),
        bounds=MappingProxyType(
            {
                metric: (bound.get("min", -math.inf), bound.get("max", math.inf))
                for metric, bound in facts.get("bounds", {}).items()
            }
        ),
        timing=Timing(**facts["timing"]),
        generation=_generation(facts),
        runs=Runs(
            required=facts["runs"]["required"],
            drop_fastest=facts["runs"]["drop"]["fastest"],
            drop_slowest=facts["runs"]["drop"]["slowest"],
        ),
        hyperparameters=MappingProxyType(
            {key: _hyperparameter(key, rule) for key, rule in facts["hyperparameters"].items()}
        ),
        provisional=facts.get("provisional"),
        data_digest=facts.get("data_digest"),
        execution=_frozen(facts.get("execution", {})),
        digest=_digest(facts, targets, scale),
    )


_parsed = cache(parse)


class _Document(dict[str, Any]):
    """A validated document, the same only as itself, so that what is made of it is made once."""

    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__


@cache
def _document(folder: Path, name: str) -> _Document:
    """The YAML of one benchmark, validated against the schema."""
    if name not in names():
        raise UserError(
            f'no benchmark "{name}"{did_you_mean(name, names())} (all: {", ".join(names())})'
        )
    path = folder / name / "benchmark.yaml"
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML: {error}") from error
    problem = first_schema_problem(document, "benchmark")
    if problem:
        raise UserError(f"{path}: {problem}")
    if document["name"] != name:
        raise UserError(f'{path}: name is "{document["name"]}", expected the folder\'s, "{name}"')
    return _Document(document)


def first_schema_problem(document: object, schema: str) -> str | None:
    """The first way ``document`` breaks ``schemas/<schema>.schema.json``, or None."""
    import jsonschema

    rules = json.loads((SCHEMAS / f"{schema}.schema.json").read_text(encoding="utf-8"))
    validator = jsonschema.Draft202012Validator(rules)
    error = next(iter(sorted(validator.iter_errors(document), key=lambda e: list(e.path))), None)
    if error is None:
        return None
    place = ".".join(str(part) for part in error.path) or "top level"
    is_bound = error.validator in ("minLength", "maxLength")  # which the message leaves out
    bound = f" ({error.validator}: {error.validator_value})" if is_bound else ""
    return f"{place}: {error.message}{bound}"


def _hyperparameter(name: str, rule: Mapping[str, Any]) -> Hyperparameter:
    if "fixed" in rule:
        return Hyperparameter(name, rule["fixed"], fixed=True)
    return Hyperparameter(
        name,
        rule["default"],
        minimum=rule.get("min"),
        maximum=rule.get("max"),
        choices=tuple(rule.get("choices", ())),
        min_of=MappingProxyType(dict(rule.get("min_of", {}))),
        max_of=MappingProxyType(dict(rule.get("max_of", {}))),
    )


def _merged(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """``own`` over ``common``, mapping by mapping; a hyperparameter's rule is replaced whole."""
    merged = dict(common)
    for key, value in own.items():
        both_mappings = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merged(merged[key], value) if both_mappings else value
    if "hyperparameters" in own:
        merged["hyperparameters"] = {**common["hyperparameters"], **own["hyperparameters"]}
    return merged


def _generation(facts: Mapping[str, Any]) -> Generation | None:
    """Raises UserError where there is one without its kind, or not a number for each count."""
    asked = facts.get("generation")
    if (asked is None) == (facts["task"]["kind"] == "generate"):
        raise UserError(
            f"{facts['name']}: task.kind is {facts['task']['kind']}, which "
            f"{'lacks a' if asked is None else 'has no'} section generation"
        )
    if asked is None:
        return None
    counts, repetitions = tuple(asked["counts"]), tuple(asked["repetitions"])
    if len(counts) != len(repetitions) or list(counts) != sorted(set(counts)):
        raise UserError(
            f"{facts['name']}: generation.counts is {list(counts)} and generation.repetitions "
            f"{list(repetitions)}; expected rising counts and a number of repetitions for each"
        )
    return Generation(counts, repetitions, asked["warm_up_images"])


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return MappingProxyType({key: _frozen(item) for key, item in value.items()})
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    return value


def _digest(facts: Mapping[str, Any], targets: Mapping[str, float], scale: str) -> str:
    """SHA-256 of the fields that a rule or the mathematics reads; titles and notes are left out."""
    covered = ("name", "task", "model", "data", "quality", "timing", "runs", "hyperparameters")
    content = {key: facts[key] for key in covered} | {"targets": targets, "scale": scale}
    content |= {"generation": facts["generation"]} if "generation" in facts else {}
    content |= {"reported": facts.get("reported", []), "bounds": facts.get("bounds", {})}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
