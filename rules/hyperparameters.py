"""Hyperparameters of a definition: the values that each division allows.

    opt_name: {closed: adam}                                  a constant
    kfac_fisher: {closed: empirical, open: [sampled, exact]}  a constant; the reference knows others
    opt_name: {default: lars, closed: [sgd, lars]}            the default is the first unless named
    global_batch_size: {default: 3200, closed: {from: 8}}

``closed`` is a constant, a list, a range ``{from, to}`` or ``any``; ``at_least`` and ``at_most`` of
a range bound it by other hyperparameters, times a factor. ``open`` is written likewise. Without it
the open division allows any value, but for a constant only what the reference knows: that value.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self

Value = bool | int | float | str

RELATION_TOLERANCE = 1e-9  # 0.1 × 3 is not 0.3
EVAL_OFFSET = "eval_offset_epochs"  # the hyperparameter that moves the schedule (rule T8)
ANY = "any"
CANONICAL = {"from": "min", "to": "max", "at_least": "min_of", "at_most": "max_of"}
"""The words of a range, and those of the digest."""


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
class Allowed:
    """The values that a division allows: some choices, or from ``minimum`` to ``maximum``.

    Bounds are inclusive, and None is unbounded. ``at_least`` and ``at_most`` bound the value by
    other hyperparameters: by their value times the factor.
    """

    choices: tuple[Value, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    at_least: Mapping[str, float] = field(default_factory=dict)
    at_most: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def parse(cls, written: Any) -> Self:
        """Return what a definition allows with ``closed:`` or ``open:``."""
        if written == ANY:
            return cls()
        if isinstance(written, Mapping):
            least, most = (written.get(key, {}) for key in ("at_least", "at_most"))
            bounds = MappingProxyType(dict(least)), MappingProxyType(dict(most))
            return cls((), written.get("from"), written.get("to"), *bounds)
        return cls(tuple(written) if isinstance(written, list) else (written,))

    def find_problem(self, value: object) -> str | None:
        """Return why ``value`` is not allowed, or None: ``must be adam``."""
        if self.choices and not any(is_same(value, choice) for choice in self.choices):
            of = "one of " if len(self.choices) > 1 else ""
            return f"must be {of}{', '.join(map(str, self.choices))}"
        if isinstance(value, int | float):
            if self.minimum is not None and value < min(self.minimum, to_float32(self.minimum)):
                return f"must be at least {self.minimum:g}"
            if self.maximum is not None and value > max(self.maximum, to_float32(self.maximum)):
                return f"must be at most {self.maximum:g}"
        return None


@dataclass(frozen=True)
class Hyperparameter:
    """What each division allows; the reference uses ``default``, and no rule reads ``open``."""

    name: str
    default: Value
    closed: Allowed = Allowed()
    open: Allowed = Allowed()

    @property
    def is_constant(self) -> bool:
        """Whether the closed division allows the default alone."""
        return len(self.closed.choices) == 1

    def find_problem(self, value: object) -> str | None:
        """Return why the closed division refuses ``value``, or None: ``must be adam``."""
        return self.find_type_problem(value) or self.closed.find_problem(value)

    def find_conflict(self, value: float, others: Mapping[str, object]) -> str | None:
        """Return why ``value`` does not fit the values of other hyperparameters, or None.

        Another hyperparameter that is missing or not a number is ignored: it is wrong by itself.
        """
        sides = (self.closed.at_least, "at least", 1), (self.closed.at_most, "at most", -1)
        for bounds, word, sign in sides:
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
    closed = Allowed.parse(rule["closed"])
    default = rule["default"] if "default" in rule else closed.choices[0]
    is_constant = len(closed.choices) == 1
    return Hyperparameter(
        name, default, closed, Allowed.parse(rule.get("open", default if is_constant else ANY))
    )


def canonicalise(rule: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section of a hyperparameter in the form that the definition's digest covers.

    Its words are those of the notation with which the digests of v1.0 were recorded. That wrote a
    constant in three ways, which ``open`` tells apart: no other value or a list of them was
    ``fixed``, any value one of ``choices``, and a range a ``min`` that equals ``max``.
    """
    closed = rule["closed"]
    if isinstance(closed, Mapping):
        renamed = {CANONICAL[key]: value for key, value in closed.items()}
        return {"default": rule["default"], **renamed}
    if isinstance(closed, list):
        return {"default": rule.get("default", closed[0]), "choices": closed}
    if closed == ANY:
        return {"default": rule["default"]}
    known = rule.get("open", [])
    if isinstance(known, Mapping):
        return {"default": closed, "min": closed, "max": closed}
    return {"default": closed, "choices": [closed]} if known == ANY else {"fixed": closed}
