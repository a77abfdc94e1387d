"""The configuration of a run: everything that it needs, validated once, before anything starts."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import yaml

from cepheid.reference.run.execution import Execution, list_choices, make_execution, parse_choice
from cepheid.reference.run.hyperparameters import parse_hyperparameters
from cepheid.rules import definition as definitions
from cepheid.rules import events
from cepheid.rules.definition import Definition
from cepheid.rules.digests import derive_seed
from cepheid.rules.errors import UserError, did_you_mean, find_elsewhere, find_meant
from cepheid.rules.hyperparameters import EVAL_OFFSET, Hyperparameter, Value

Kind = TypeVar("Kind")

DIVISIONS = ("closed", "open")
PRESET = "preset"  # the key of --set that stands for the settings of that name
SEED_LIMIT = 2**32 - 100  # given seeds count up from run to run


@dataclass(frozen=True)
class RunConfig:
    """One run of a result: the definition, the values in use, the seed, the submitter."""

    definition: Definition
    division: str
    hyperparameters: Mapping[str, Value]
    execution: Execution
    framework: str
    submitter: str
    system: str
    code_digest: str
    data_root: Path
    seed: int
    seed_origin: str
    index: int = 0
    task_digest: str = ""  # of a submitter's own code; empty for the reference's code
    device_digest: str = ""  # of a vendor's own device, after the name of its file

    @property
    def global_batch_size(self) -> int:
        """Number of samples in one optimizer step, over all ranks."""
        return int(self.hyperparameters["global_batch_size"])

    @property
    def eval_offset_epochs(self) -> int:
        """Epochs by which the schedule of evaluations is moved (rule T8)."""
        return int(self.hyperparameters.get(EVAL_OFFSET, 0))

    @property
    def norm_options(self) -> dict[str, Any]:
        """The keyword arguments of what makes the batch norms of the definition's model."""
        return {key: self.definition.model[f"batch_norm_{key}"] for key in ("epsilon", "momentum")}

    def read(self, kind: type[Kind]) -> Kind:
        """Return the dataclass ``kind``, whose fields are hyperparameters."""
        return parse_hyperparameters(kind, self.hyperparameters)

    @property
    def result_name(self) -> str:
        """Name of the result's folder, e.g. ``galaxy_shape-mini-closed``."""
        return f"{self.definition.name}-{self.definition.scale}-{self.division}"

    def name_system(
        self,
        submitter: str,
        system: str,
        code_digest: str,
        task_digest: str = "",
        device_digest: str = "",
    ) -> "RunConfig":
        """Return the same for a submitter's system and the code that runs on it."""
        named = replace(self, submitter=submitter, system=system, code_digest=code_digest)
        named = replace(named, task_digest=task_digest, device_digest=device_digest)
        return named.select_run(self.index)

    def complete_implementation(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a task says of its implementation, with the vendor's device, if any."""
        own = {"device_module": self.device_digest} if self.device_digest else {}
        return {**facts, **own}

    def select_run(self, index: int) -> "RunConfig":
        """Return the same for run ``index``, with a derived seed or one counted up from seed 0."""
        if self.seed_origin == "given":
            return replace(self, seed=self.seed - self.index + index, index=index)
        nonce = events.read_nonce()
        benchmark = f"{self.definition.name}-{self.definition.scale}"
        seed = derive_seed(nonce, self.submitter, self.system, benchmark, index)
        return replace(self, seed=seed, index=index)

    def list_shared_settings(self) -> dict[str, Any]:
        """Return what all runs of a result have in common (rule T18), as plain JSON."""
        counts = {"train": self.definition.train_samples}
        subset = {"subset": counts} if self.definition.data.get("is_subset") else {}
        return {
            **subset,
            "round": events.CURRENT_ROUND,
            "benchmark": self.definition.name,
            "scale": self.definition.scale,
            "division": self.division,
            "definition_digest": self.definition.digest,
            "code_digest": self.code_digest,
            "submitter": self.submitter,
            "system": self.system,
            "framework": self.framework,
            "hyperparameters": dict(self.hyperparameters),
            "execution": asdict(self.execution),
            "seeds": "derived"
            if self.seed_origin == "derived"
            else f"given, from {self.seed - self.index}",
        }


def limit_samples(definition: Definition, samples: int) -> Definition:
    """Return the definition on the first ``samples`` of each part, for a run that only tries.

    It has two evaluations. Its digest stays, so that T10 refuses its logs. Distributed files need
    not be complete (``is_subset``). Raises UserError for less than one sample.
    """
    if samples < 1:
        raise UserError(f"--limit {samples}: expected 1 or more samples")
    data = dict(definition.data)
    for key in ("train_samples", "evaluation_samples"):
        data[key] = min(samples, data[key])
    data["is_subset"] = True
    timing = replace(
        definition.timing,
        eval_every_samples=min(samples, definition.timing.eval_every_samples),
        max_samples=min(2 * samples, definition.timing.max_samples),
    )
    return replace(definition, data=MappingProxyType(data), timing=timing)


def configure(
    definition: Definition,
    *,
    division: str = "closed",
    overrides: Sequence[str] = (),
    framework: str = "torch",
    data_root: Path = Path("data"),
    seed: int | None = None,
    own_code: bool = False,
) -> RunConfig:
    """Make the configuration of run 0 of a result; ``RunConfig.name_system`` completes it.

    ``overrides`` are ``key=value`` strings for hyperparameters and execution settings;
    ``preset=NAME`` stands for those that the definition has under this name. With ``own_code`` a
    submitter's task runs, which may do other things in the open division. Raises UserError for an
    unknown key, a value of the wrong type, or one that the division forbids.
    """
    if seed is not None and not 0 <= seed < SEED_LIMIT:
        raise UserError(f"--seed {seed}: expected a number from 0 to {SEED_LIMIT - 1}")
    if division not in DIVISIONS:
        guess = did_you_mean(division, DIVISIONS)
        known = ", ".join(DIVISIONS)
        raise UserError(f'division is "{division}", expected one of {known}{guess}')
    choices = list_choices(definition, framework)
    for override in overrides:
        _refuse_unknown(definition, choices, override)
    texts = list(_resolve_presets(definition, overrides))
    values = _choose_values(definition, texts, division, own_code)
    variants = _parse_choices(texts, definition.variants)
    execution = make_execution(choices, _parse_choices(texts, choices), variants)
    if division == "closed":
        _refuse_conflicts(definition.hyperparameters, values)
        for problem in find_variant_problems(definition, execution):
            raise UserError(f"--set {problem}")
    config = RunConfig(
        definition=definition.vary(variants),
        division=division,
        hyperparameters=MappingProxyType(values),
        execution=execution,
        framework=framework,
        submitter="local",
        system="local",
        code_digest="",
        data_root=data_root,
        seed=0 if seed is None else seed,
        seed_origin="derived" if seed is None else "given",
    )
    return config.select_run(0)


def _refuse_unknown(
    definition: Definition, choices: Mapping[str, Sequence[str]], override: str
) -> None:
    """Raise UserError for a key that the benchmark does not have."""
    key, _, text = (part.strip() for part in override.partition("="))
    known = [*definition.hyperparameters, *choices, *definition.variants]
    known += [PRESET] if definition.presets else []
    if key == PRESET and not definition.presets:
        raise UserError(
            f"--set {PRESET}={text}: {definition.name} has no presets at {definition.scale} "
            "scale; its README says which settings it has"
        )
    if key in known or not key:
        return
    raise UserError(
        f"--set {key}: {definition.name} has no such setting{suggest(key, known)} "
        f"(all: {', '.join(known)})"
    )


def suggest(key: str, *known: Collection[str]) -> str:
    """Return which known name is meant, where it is set, or which benchmarks have the setting."""
    if place := find_elsewhere(key):
        return f"; {place}"
    owners: dict[str, list[str]] = {}
    for name in definitions.names():
        other = definitions.load(name, definitions.scales(name)[0])
        for own in (*other.hyperparameters, *other.variants, *other.execution):
            owners.setdefault(own, []).append(name)
    if not (meant := find_meant(key, *known, owners)):
        return ""
    is_here = any(meant in group for group in known)
    where = ", ".join(owners.get(meant, ()))
    return f'; did you mean "{meant}"?' if is_here else f"; {meant} is a setting of {where}"


def _choose_values(
    definition: Definition, texts: Iterable[tuple[str, str]], division: str, own_code: bool
) -> dict[str, Value]:
    """Return the value of each hyperparameter. Raises UserError where the division forbids it."""
    rules = definition.hyperparameters
    values: dict[str, Value] = {key: rule.default for key, rule in rules.items()}
    for key, text in texts:
        if key in rules:
            values[key] = _parse_allowed(rules[key], text, division, own_code)
    if int(values.get("global_batch_size", 1)) < 1:
        raise UserError(f"global_batch_size is {values['global_batch_size']}, expected 1 or more")
    return values


def _parse_choices(
    texts: Iterable[tuple[str, str]], choices: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """Return the texts of the settings in ``choices``. Raises UserError for no choice."""
    return {key: parse_choice(key, text, choices[key]) for key, text in texts if key in choices}


def find_variant_problems(definition: Definition, execution: Execution) -> Iterator[str]:
    """Yield why the closed division refuses a variant, for each that is not the definition's."""
    for key, choices in definition.variants.items():
        choice = execution.own.get(key, choices[0])
        if choice != choices[0]:
            yield (
                f"{key}={choice}: the closed division has {choices[0]} only; "
                "fix: add --division open, or leave the setting out"
            )


def _resolve_presets(definition: Definition, overrides: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield keys and texts of the overrides, in their order; a preset's where it stands.

    Raises UserError for a preset that the definition does not have.
    """
    for key, text in map(parse_override, overrides):
        if key != PRESET or not definition.presets:
            yield key, text
            continue
        if text not in definition.presets:
            raise UserError(
                f"--set {PRESET}={text}: {definition.name} has no such preset at "
                f"{definition.scale} scale{did_you_mean(text, definition.presets)} "
                f"(all: {', '.join(definition.presets)})"
            )
        yield from map(parse_override, definition.presets[text])


def _refuse_conflicts(rules: Mapping[str, Hyperparameter], values: Mapping[str, Value]) -> None:
    """Raise UserError where a value is forbidden beside the others (rule T12)."""
    for key, rule in rules.items():
        value = values[key]
        problem = rule.find_conflict(value, values) if isinstance(value, int | float) else None
        if problem:
            raise UserError(
                f"{key} is {value}: in the closed division it {problem} (rule T12); "
                f"set both, e.g. --set {key}=…"
            )


def parse_override(override: str) -> tuple[str, str]:
    """Split the ``KEY=VALUE`` of ``--set`` into key and text.

    Raises UserError if one of them is missing.
    """
    key, equals, text = override.partition("=")
    if not (key and equals and text):
        example = f"{key}=…" if key else "global_batch_size=32"
        raise UserError(f'--set "{override}": expected key=value, e.g. --set {example}')
    return key.strip(), text.strip()


def _parse_allowed(rule: Hyperparameter, text: str, division: str, own_code: bool) -> Value:
    """Return the value in ``text``. Raises UserError where the division forbids it."""
    value = _parse_value(text, type(rule.default))
    problem = rule.find_type_problem(value)
    if problem:
        raise UserError(f"--set {rule.name}={text}: {problem}, e.g. {rule.default}")
    problem = rule.find_problem(value)
    if problem and division == "closed":
        raise UserError(f"--set {rule.name}={text}: in the closed division it {problem} (rule T12)")
    if problem and rule.name == EVAL_OFFSET:
        raise UserError(f"--set {rule.name}={text}: in both divisions it {problem} (rule T8)")
    # The log must not name a value that no code here uses.
    unknown = rule.open.find_problem(value) if problem else None
    if unknown and not own_code:
        known = ", ".join(map(str, dict.fromkeys((rule.default, *rule.open.choices))))
        what = f"this implementation knows only {known}" if rule.open.choices else f"it {unknown}"
        raise UserError(
            f"--set {rule.name}={text}: {what}; "
            "in the open division another value needs code of your own (--task)"
        )
    return value


def _parse_value(text: str, expected: type) -> Value:
    if expected is float:
        try:
            return float(text)  # YAML would read 1e-3 as a string
        except ValueError:
            return text
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    return value if isinstance(value, bool | int | float | str) else text
