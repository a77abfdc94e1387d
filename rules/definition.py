"""Benchmark definitions: every fact about a benchmark that a rule or a trainer needs, once.

``benchmarks/<name>/benchmark.yaml`` holds the facts, ``load(name, scale)`` merges the scale's own
facts over the common ones, validates them against ``schemas/benchmark.schema.json`` and returns a
frozen ``Definition``. The directory listing of ``benchmarks/`` is the registry.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from cepheid.rules.documents import find_schema_problem, parse_yaml
from cepheid.rules.errors import UserError, did_you_mean
from cepheid.rules.events import Kind
from cepheid.rules.host import ROOT
from cepheid.rules.hyperparameters import (
    ANY,
    Allowed,
    Hyperparameter,
    canonicalise,
    parse_hyperparameter,
)
from cepheid.rules.metrics import QualityTarget, Relations, parse_relations

BENCHMARKS = ROOT / "benchmarks"
FROZEN = ROOT / "rules" / "rounds" / "frozen"  # a folder for each round that is frozen
BENCHMARKS_VARIABLE = "CEPHEID_BENCHMARKS"  # of the environment, for tests
PLAIN = (  # what a definition has as it is written
    "name", "title", "model", "data", "provisional", "data_digest", "execution", "variants",
    "presets", "extras", "summary", "flops_per_sample", "meanings", "units",
)  # fmt: skip


@dataclass(frozen=True)
class Timing:
    """The limits of time: initialisation in minutes, cadence of evaluation and budget in samples.

    A run ends when its targets hold at ``evaluations_to_hold`` successive evaluations (rule T9).
    A benchmark that generates has neither cadence nor budget; both are 0.
    """

    init_minutes_max: float
    eval_every_samples: int = 0
    max_samples: int = 0
    evaluations_to_hold: int = 1


@dataclass(frozen=True)
class Generation:
    """The timed work of a benchmark that generates (rule T24).

    ``counts[i]`` images at a time are generated ``repetitions[i]`` times, each count after a
    warm-up with ``warm_up_images``.
    """

    counts: tuple[int, ...]
    repetitions: tuple[int, ...]
    warm_up_images: int

    @property
    def images(self) -> int:
        """The number of images in all repetitions together."""
        return sum(n * times for n, times in zip(self.counts, self.repetitions, strict=True))


@dataclass(frozen=True)
class Runs:
    """The number of runs in a result, and how many the olympic mean drops at each end."""

    required: int
    drop_fastest: int
    drop_slowest: int


@dataclass(frozen=True)
class Block:
    """The training between two evaluations.

    ``first_sample`` is the number of samples trained before it, ``samples`` the total after it.
    """

    number: int
    first_sample: int
    samples: int


@dataclass(frozen=True)
class Definition:
    """One benchmark at one scale.

    ``model`` and ``data`` hold facts that only the benchmark's own task reads. ``bounds`` are the
    lowest and highest possible values of a metric, ``relations`` what holds between metrics.
    ``data_digest`` belongs to the dataset that the reference prepares. ``generation`` is set if
    ``kind`` is ``generate``. ``execution`` are settings that only this benchmark's reference has
    and that do not change the mathematics, each with its choices, the default first. ``variants``
    are facts of ``data`` or ``model`` that the reference can choose otherwise in the open division,
    likewise; no rule reads them. ``presets`` are settings that belong together, ``key=value``, by
    the name of all of them. ``extras`` are those of the installation that its data and metrics
    need, besides that of a framework. ``summary`` says in a sentence what runs at this scale,
    ``meanings`` what the metrics are, and ``units`` the units of those that are no plain numbers;
    no rule reads them. ``counted_train_samples`` is what the prepared data have, where a text that
    nobody has counted yet has fewer pairs than ``data`` asks for. ``flops_per_sample`` are the
    floating-point operations of ``model.parameters`` for a training sample, forward and backward,
    or for a generated one; None where they were not counted.
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
    relations: Relations
    timing: Timing
    runs: Runs
    hyperparameters: Mapping[str, Hyperparameter]
    generation: Generation | None = None
    provisional: str | None = None
    data_digest: str | None = None
    execution: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    variants: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    presets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    extras: tuple[str, ...] = ()
    summary: str = ""
    flops_per_sample: int | None = None
    meanings: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    counted_train_samples: int | None = None
    digest: str = field(default="", compare=False)

    @property
    def train_samples(self) -> int:
        """The number of samples in the training set."""
        return self.counted_train_samples or int(self.data["train_samples"])

    @property
    def evaluation_samples(self) -> int:
        """The number of samples in the evaluation set; every evaluation reads all of them."""
        return int(self.data["evaluation_samples"])

    def vary(self, chosen: Mapping[str, str]) -> "Definition":
        """Return the definition with the variants in ``chosen``; its digest stays.

        A variant that ``data`` does not have is a fact of ``model``.
        """
        varied = {key: chosen.get(key, choices[0]) for key, choices in self.variants.items()}
        others = {key: value for key, value in varied.items() if value != self.variants[key][0]}
        if not others:
            return self
        of_data = {key: others.pop(key) for key in tuple(others) if key in self.data}
        data, model = {**self.data, **of_data}, {**self.model, **others}
        return replace(self, data=MappingProxyType(data), model=MappingProxyType(model))

    def count_parameters(self, hyperparameters: Mapping[str, object]) -> int:
        """Return the number of trainable parameters of the model with these hyperparameters.

        A hyperparameter that is missing has its default.
        """
        for name, counts in self.model.get("parameters_with", {}).items():
            chosen = hyperparameters.get(name)
            if isinstance(chosen, str) and chosen in counts:
                return int(counts[chosen])
        return int(self.model["parameters"])

    def find_given_weights(self, hyperparameters: Mapping[str, object]) -> Mapping[str, str] | None:
        """Return file and digest of the weights from which a training starts, or None.

        ``model.given_weights`` has them, or has them by the choices of one hyperparameter, which is
        its ``by``.
        """
        given: Mapping[str, Any] | None = self.model.get("given_weights")
        if given is None or "by" not in given:
            return given
        found = given.get(str(hyperparameters.get(given["by"])))
        return found if isinstance(found, Mapping) else None  # a log may choose "by"

    def is_reached_by(self, quality: Mapping[str, float]) -> bool:
        """Return True if every quality target holds (rule T9)."""
        return all(target.holds(quality.get(target.metric, math.nan)) for target in self.quality)

    def schedule(self, global_batch_size: int, eval_offset_epochs: int = 0) -> Iterator[Block]:
        """Yield the blocks of a run (rule T8).

        Each block ends with the first whole batch that completes the next multiple of
        ``timing.eval_every_samples``, counted from ``eval_offset_epochs`` epochs on. If the offset
        is not 0, the first block ends there. The last block completes ``timing.max_samples``.
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


def locate_benchmarks(judged_in: str | None = None) -> Path:
    """Return the folder of the definitions: ``$CEPHEID_BENCHMARKS``, else this checkout's.

    A round ``judged_in`` that is frozen has its own. The code is always this checkout's.
    """
    if judged_in and (FROZEN / judged_in).is_dir():
        return FROZEN / judged_in
    return Path(os.environ.get(BENCHMARKS_VARIABLE) or BENCHMARKS)


def names(judged_in: str | None = None) -> tuple[str, ...]:
    """Return the benchmarks in alphabetical order: every folder with a ``benchmark.yaml``."""
    folder = locate_benchmarks(judged_in)
    return _list_names(folder, folder.stat().st_mtime_ns)


@cache
def _list_names(folder: Path, changed_ns: int) -> tuple[str, ...]:
    """List the folder only when it has changed: every log needs the names several times."""
    return tuple(sorted(path.parent.name for path in folder.glob("*/benchmark.yaml")))


def scales(name: str, judged_in: str | None = None) -> tuple[str, ...]:
    """Return the scales that a benchmark defines. Raises UserError for an unknown name."""
    return tuple(_read_document(locate_benchmarks(judged_in), name)["scales"])


def load(name: str, scale: str, judged_in: str | None = None) -> Definition:
    """Return a benchmark's definition at a scale. Raises UserError for an unknown name or scale."""
    document = _read_document(locate_benchmarks(judged_in), name)
    if scale not in document["scales"]:
        known = ", ".join(document["scales"])
        raise UserError(
            f'{name} has no scale "{scale}"{did_you_mean(scale, document["scales"])} (all: {known})'
        )
    return _parse_once(document, scale)


def parse(document: Mapping[str, Any], scale: str) -> Definition:
    """Make the Definition of one scale from a validated ``benchmark.yaml`` document."""
    common = {key: value for key, value in document.items() if key != "scales"}
    facts = _merge(common, document["scales"][scale])
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
            if choice not in Allowed.parse(known.get(name, {}).get("closed", ANY)).choices:
                raise UserError(
                    f"{facts['name']}, scale {scale}: model.parameters_with has an entry for "
                    f"{name} {choice}, which is not one of its choices"
                )
    for name, rule in known.items():
        bounds = Allowed.parse(rule["closed"])
        for other in {**bounds.at_least, **bounds.at_most}:
            if other not in known:
                raise UserError(
                    f"{facts['name']}: {name} is bounded by {other}, which is not a hyperparameter"
                    f"{did_you_mean(other, known)}"
                )
    limits = {
        metric: (bound.get("min", -math.inf), bound.get("max", math.inf))
        for metric, bound in facts.get("bounds", {}).items()
    }
    dropped = facts["runs"]["drop"]
    rules = {key: parse_hyperparameter(key, rule) for key, rule in known.items()}
    return Definition(
        **{key: _freeze(facts[key]) for key in PLAIN if key in facts},
        scale=scale,
        kind=facts["task"]["kind"],
        quality=tuple(
            QualityTarget(entry["metric"], entry["better"], float(targets[entry["metric"]]))
            for entry in facts["quality"]
        ),
        reported=tuple(facts.get("reported", ())),
        bounds=MappingProxyType(limits),
        relations=parse_relations(facts.get("relations", {})),
        timing=Timing(**facts["timing"]),
        generation=_parse_generation(facts),
        runs=Runs(facts["runs"]["required"], dropped["fastest"], dropped["slowest"]),
        hyperparameters=MappingProxyType(rules),
        digest=_digest(facts, targets, scale),
    )


_parse_once = cache(parse)


class _Document(dict[str, Any]):
    """A validated document that equals only itself, so that it can be a key of a cache."""

    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__


@cache
def _read_document(folder: Path, name: str) -> _Document:
    """Read the YAML of one benchmark and validate it against the schema."""
    known = _list_names(folder, folder.stat().st_mtime_ns)
    if name not in known:
        raise UserError(
            f'no benchmark "{name}"{did_you_mean(name, known)} (all: {", ".join(known)})'
        )
    path = folder / name / "benchmark.yaml"
    try:
        document = parse_yaml(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML: {error}") from error
    # What a round has frozen was valid then; today's schema must not make it unreadable.
    problem = None if folder.parent == FROZEN else find_schema_problem(document, "benchmark")
    if problem:
        is_rule = problem.startswith("hyperparameters")
        fix = "; fix: write closed: and open:, as rules/CHANGES.md shows" if is_rule else ""
        raise UserError(f"{path}: {problem}{fix}")
    if document["name"] != name:
        raise UserError(f'{path}: name is "{document["name"]}", expected the folder\'s, "{name}"')
    return _Document(document)


def _merge(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Merge ``own`` over ``common``; the rule of a hyperparameter is replaced as a whole."""
    merged = dict(common)
    for key, value in own.items():
        both_mappings = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merge(merged[key], value) if both_mappings else value
    if "hyperparameters" in own:
        merged["hyperparameters"] = {**common["hyperparameters"], **own["hyperparameters"]}
    return merged


def _parse_generation(facts: Mapping[str, Any]) -> Generation | None:
    """Parse the section ``generation``.

    Raises UserError if it does not fit the kind of task, or if counts and repetitions differ.
    """
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


def _freeze(value: Any) -> Any:
    if isinstance(value, Mapping):
        return MappingProxyType({key: _freeze(item) for key, item in value.items()})
    if isinstance(value, list):
        return tuple(_freeze(item) for item in value)
    return value


def _digest(facts: Mapping[str, Any], targets: Mapping[str, float], scale: str) -> str:
    """Return the SHA-256 of all fields that a rule reads; titles and notes are left out."""
    covered = ("name", "task", "model", "data", "quality", "timing", "runs", "hyperparameters")
    content = {key: facts[key] for key in covered} | {"targets": targets, "scale": scale}
    content["hyperparameters"] = {
        name: canonicalise(rule) for name, rule in facts["hyperparameters"].items()
    }
    content |= {"generation": facts["generation"]} if "generation" in facts else {}
    content |= {"reported": facts.get("reported", []), "bounds": facts.get("bounds", {})}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
