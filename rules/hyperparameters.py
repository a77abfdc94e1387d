"""Hyperparameters of a definition: the values that each division allows."""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

Value = bool | int | float | str

RELATION_TOLERANCE = 1e-9  # 0.1 × 3 is not 0.3
EVAL_OFFSET = "eval_offset_epochs"  # the hyperparameter that moves the schedule (rule T8)


def to_float32(value: float) -> float:
    """Return the nearest number of single precision, as a program may read it back."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return value


def is_same(value: object, allowed: object) -> bool:
    """Return whether a logged value is the allowed one, perhaps rounded to single precision."""
    if value == allowed:
        return True
    return isinstance(value, float) and isinstance(allowed, float) and value == to_float32(allowed)


@dataclass(frozen=True)
class Hyperparameter:
    """The values that the closed division allows; the reference uses ``default``.

    If it is ``fixed``, only the default is allowed; ``open`` are values that the reference knows in
    the open division, which no rule reads. Otherwise the value lies between ``minimum``
    and ``maximum`` (inclusive, None is unbounded) or among ``choices``. ``min_of`` and ``max_of``
    bound it by other hyperparameters: by their value times the factor.
    """

    name: str
    default: Value
    fixed: bool = False
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[Value, ...] = ()
    min_of: Mapping[str, float] = field(default_factory=dict)
    max_of: Mapping[str, float] = field(default_factory=dict)
    open: tuple[Value, ...] = ()

    def find_problem(self, value: object) -> str | None:
        """Return why the closed division refuses ``value``, or None: ``must be adam``."""
        wrong_type = self.find_type_problem(value)
        if wrong_type:
            return wrong_type
        if self.fixed and not is_same(value, self.default):
            return f"must be {self.default}"
        if self.choices and not any(is_same(value, choice) for choice in self.choices):
            return f"must be one of {', '.join(map(str, self.choices))}"
        if isinstance(value, int | float):
            if self.minimum is not None and value < min(self.minimum, to_float32(self.minimum)):
                return f"must be at least {self.minimum:g}"
            if self.maximum is not None and value > max(self.maximum, to_float32(self.maximum)):
                return f"must be at most {self.maximum:g}"
        return None

    def find_conflict(self, value: float, others: Mapping[str, object]) -> str | None:
        """Return why ``value`` does not fit the values of other hyperparameters, or None.

        Another hyperparameter that is missing or not a number is ignored: it is wrong by itself.
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

    def find_type_problem(self, value: object) -> str | None:
        """Return why both divisions refuse the type of ``value``, or None.

        A value has the type of the default; an integer may stand for a float.
        """
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


def parse_hyperparameter(name: str, rule: Mapping[str, Any]) -> Hyperparameter:
    """Make a Hyperparameter of its section in a validated ``benchmark.yaml``."""
    if "fixed" in rule:
        return Hyperparameter(name, rule["fixed"], fixed=True, open=tuple(rule.get("open", ())))
    return Hyperparameter(
        name,
        rule["default"],
        minimum=rule.get("min"),
        maximum=rule.get("max"),
        choices=tuple(rule.get("choices", ())),
        min_of=MappingProxyType(dict(rule.get("min_of", {}))),
        max_of=MappingProxyType(dict(rule.get("max_of", {}))),
    )
