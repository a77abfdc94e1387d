"""The event vocabulary of a v1.0 run log: key, place, count, type of the value, metadata (rule T2).

A benchmark that trains and one that generates share what precedes the clock, and differ in what is
timed: ``EVENTS[kind]``. Keys are those of mllog where mllog has one. The keys of a benchmark's
hyperparameters come from its definition and are events of the settings phase too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypeGuard

import yaml

MARKER = ":::MLLOG"
CURRENT_ROUND = (Path(__file__).parent / "rounds" / "CURRENT").read_text("utf-8").strip()
"""The value of ``submission_round``: the round that runs are for."""

Kind = Literal["train", "generate"]
EventType = Literal["INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"]
ValueType = Literal["null", "true", "integer", "number", "string", "object", "any"]
Count = Literal["once", "at most once", "at least once"]


class Phase(IntEnum):
    """The phases of a log, in their order (rule T3)."""

    IDENTITY = 0  # whose run of what this is, before initialisation
    INIT = 1  # from init_start to init_stop: settings, building, compiling, warming up
    TIMED = 2  # from run_start to run_stop: the part that is scored
    AFTER = 3  # after run_stop: what is measured then and enters no score


@dataclass(frozen=True)
class EventRule:
    """The form that the events of one key must have."""

    key: str
    phase: Phase
    count: Count = "once"
    value: ValueType = "null"
    event_type: EventType = "POINT_IN_TIME"
    metadata: tuple[str, ...] = ()
    meaning: str = ""


def _start(key: str, phase: Phase, count: Count, metadata: tuple[str, ...], why: str) -> EventRule:
    return EventRule(key, phase, count, "null", "INTERVAL_START", metadata, why)


def _stop(key: str, phase: Phase, count: Count, metadata: tuple[str, ...], why: str) -> EventRule:
    return EventRule(key, phase, count, "null", "INTERVAL_END", metadata, why)


_I, _N, _T = Phase.IDENTITY, Phase.INIT, Phase.TIMED
_BLOCK = ("block_num", "samples_count")

_BEFORE_THE_CLOCK = (
    EventRule("submission_round", _I, value="string", meaning="round, e.g. v1.0"),
    EventRule("submission_org", _I, value="string", meaning="submitter"),
    EventRule("submission_platform", _I, value="string", meaning="system"),
    EventRule("submission_division", _I, value="string", meaning="closed or open"),
    EventRule("submission_benchmark", _I, value="string", meaning="benchmark"),
    EventRule("submission_scale", _I, value="string", meaning="full or mini"),
    EventRule("cache_clear", _I, value="true", meaning="data dropped from file caches"),
    _start("init_start", _N, "once", (), "initialisation begins"),
    EventRule("seed", _N, value="integer", metadata=("origin",),
              meaning="the run's seed; metadata.origin: derived or given"),
    EventRule("definition_digest", _N, value="string",
              meaning="digest of the definition, as `cepheid run --list` prints it"),
    EventRule("code_digest", _N, value="string",
              meaning="any string that identifies the code, equal in all runs of a result"),
    EventRule("task_digest", _N, "at most once", "string",
              meaning="digest of the submitter's own code, as the manifest has it (S4)"),
    EventRule("data_digest", _N, value="string", meaning="digest of the prepared data"),
    EventRule("implementation", _N, value="object",
              meaning="framework, device, precision, ranks, and whatever else matters"),
    EventRule("train_samples", _N, value="integer", meaning="size of the training set"),
    EventRule("eval_samples", _N, value="integer", meaning="size of the evaluation set"),
    EventRule("model_parameters", _N, value="integer", meaning="trainable parameters"),
    EventRule("init_aborted", _N, "at most once", "string",
              meaning="why the run ended before run_start; such a log never counts"),
    _stop("init_stop", _N, "once", (), "initialisation ends"),
)  # fmt: skip
_READ = EventRule(
    "data_read",
    Phase.AFTER,
    "at most once",
    "string",
    meaning="digest of the bytes that the run read, computed after run_stop (T27)",
)
_USE = EventRule(
    "machine_use",
    Phase.AFTER,
    "at most once",
    "object",
    meaning="load_before, and idle_share, stolen_share and own_share of the time of all processors",
)
_WEIGHTS = "SHA-256 of the file with the weights, in hexadecimal"
_TRAINING = (
    EventRule("weights_digest", _N, "at most once", "string",
              meaning=f"{_WEIGHTS}; if the training starts from some (T25)"),
    _start("run_start", _T, "once", (), "the clock starts; data may be read from here on"),
    _start("block_start", _T, "at least once", _BLOCK, "training towards an evaluation"),
    _stop("block_stop", _T, "at least once", (*_BLOCK, "train_loss"), "training pauses"),
    _start("eval_start", _T, "at least once", ("samples_count",), "evaluation begins"),
    EventRule("eval_accuracy", _T, "at least once", "number",
              metadata=("samples_count", "epoch_num", "metrics"),
              meaning="the first quality metric; all of them in metadata.metrics"),
    _stop("eval_stop", _T, "at least once", ("samples_count",), "evaluation ends"),
    _stop("run_stop", _T, "once", ("status", "samples_count"),
          "the clock stops; metadata.status: success or aborted"),
    _READ,
    _USE,
    EventRule("plain_update_ms", Phase.AFTER, "at most once", "number",
              meaning="milliseconds of an update without a preconditioner, all else equal"),
)  # fmt: skip
_GENERATION = (
    EventRule("weights_digest", _N, value="string", meaning=_WEIGHTS),
    _start("run_start", _T, "once", (), "the clock starts"),
    _start("generation_start", _T, "at least once", ("images_count",),
           "repeated generation of images_count images at a time begins"),
    EventRule("generation_times", _T, "at least once", "object", metadata=("images_count",),
              meaning="seconds of each repetition: sampling_seconds and decoding_seconds"),
    _stop("generation_stop", _T, "at least once", ("images_count",), "the repetitions end"),
    _start("eval_start", _T, "once", ("samples_count",),
           "evaluation of the generated images begins"),
    EventRule("eval_accuracy", _T, "once", "number", metadata=("samples_count", "metrics"),
              meaning="the first quality metric; all of them in metadata.metrics"),
    _stop("eval_stop", _T, "once", ("samples_count",), "evaluation ends"),
    _stop("run_stop", _T, "once", ("status", "samples_count"),
          "the clock stops; metadata.status: success or aborted"),
    _READ,
    _USE,
    EventRule("image_projections", Phase.AFTER, "at most once", "any",
              meaning="a number for each judged image, by which some can be made again (T24)"),
)  # fmt: skip

_OF_KIND: Mapping[Kind, tuple[EventRule, ...]] = {"train": _TRAINING, "generate": _GENERATION}
EVENTS: Mapping[Kind, Mapping[str, EventRule]] = MappingProxyType(
    {
        kind: MappingProxyType({rule.key: rule for rule in (*_BEFORE_THE_CLOCK, *timed)})
        for kind, timed in _OF_KIND.items()
    }
)
"""The rule of each key, by the kind of the benchmark's task."""


def find_event_type(key: str) -> EventType:
    """Return the type of an event; a key that no kind of benchmark has is a point in time."""
    for known in EVENTS.values():
        if key in known:
            return known[key].event_type
    return "POINT_IN_TIME"


CLOCK_METADATA = "monotonic_ms"  # carried by every event of a v1.0 log (rule T4)
STATUS_SUCCESS = "success"
STATUS_ABORTED = "aborted"

METADATA_TYPES: Mapping[str, ValueType] = MappingProxyType(
    {
        "block_num": "integer",
        "samples_count": "integer",
        "train_loss": "number",
        "epoch_num": "number",
        "metrics": "object",
        "images_count": "integer",
        "origin": "string",
        "status": "string",
    }
)
"""The type of each metadata field in the table."""

MACHINE_SHARES = ("idle_share", "stolen_share", "own_share")  # in machine_use
GENERATION_SECONDS = ("sampling_seconds", "decoding_seconds")  # lists in generation_times
NOT_DIGESTED = "not digested: "  # begins data_read, instead of a digest, where there is none
REASON_METADATA = "reason"  # a string in run_stop; a run that gave up early has it (rule T11)
INTERRUPTED_METADATA = "interrupted"  # true in run_stop of a run that did not end by itself

IMPLEMENTATION_TYPES: Mapping[str, ValueType] = MappingProxyType(
    {"framework": "string", "device": "string", "precision": "string", "ranks": "integer"}
)
"""The fields that the value of ``implementation`` must have."""


def make_hyperparameter_rule(name: str) -> EventRule:
    """Make the rule for the event of a hyperparameter; T12 and T13 judge whether it must exist."""
    meaning = "a hyperparameter of the definition"
    return EventRule(name, Phase.INIT, "at most once", "any", meaning=meaning)


CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "submission_division": ("closed", "open"),
        "origin": ("derived", "given"),
        "status": (STATUS_SUCCESS, STATUS_ABORTED),
    }
)
"""The strings that are allowed for an event's value or a metadata field, if there are few."""


def has_type(value: object, expected: ValueType) -> bool:
    """Return True if a JSON value has the type that the table gives."""
    match expected:
        case "null":
            return value is None
        case "true":
            return value is True
        case "integer":
            return is_integer(value)
        case "number":
            return is_number(value)
        case "string":
            return isinstance(value, str)
        case "object":
            return isinstance(value, dict)
        case "any":
            return True


def is_blank(value: object) -> bool:
    """Return True for a text without any letter or digit, which says nothing."""
    return isinstance(value, str) and not any(map(str.isalnum, value))


_NUMBERS = (int, float)  # a union would be made anew in each of a million calls


def is_number(value: object) -> TypeGuard[int | float]:
    """Return True for a JSON number; a boolean is not one."""
    return isinstance(value, _NUMBERS) and not isinstance(value, bool)


def is_integer(value: object) -> TypeGuard[int]:
    """Return True for a JSON integer; a boolean is not one."""
    return isinstance(value, int) and not isinstance(value, bool)


@cache
def read_nonce() -> str:
    """Read the nonce of the current round, from which seeds follow (rule T15)."""
    file = Path(__file__).parent / "rounds" / f"{CURRENT_ROUND}.yaml"
    return str(yaml.safe_load(file.read_text("utf-8"))["nonce"])
