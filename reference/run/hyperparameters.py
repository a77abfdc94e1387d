"""Typed hyperparameters: each benchmark has a frozen dataclass, which is filled in here."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from cepheid.rules.errors import UserError
from cepheid.rules.hyperparameters import Value

Kind = TypeVar("Kind")


def parse_hyperparameters(kind: type[Kind], values: Mapping[str, Value]) -> Kind:
    """Return an instance of the dataclass ``kind`` with each field converted to its type.

    A field has the name of a hyperparameter of the definition and the type float, int, bool or str,
    a ``Literal`` of the values that the implementation knows, in the open division too, or a class
    with a method ``parse``. The dataclass may leave out what the code does not read.

    Raises UserError for a value that is not in its ``Literal``, and KeyError for a field without a
    default that the definition lacks.
    """
    types = get_type_hints(kind)
    parsed: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name in values or field.default is MISSING:
            parsed[field.name] = _convert(field.name, values[field.name], types[field.name])
    return kind(**parsed)


def _convert(key: str, value: Value, kind: Any) -> Any:
    if get_origin(kind) is not Literal:
        return getattr(kind, "parse", kind)(value)
    choices = get_args(kind)
    if value not in choices:
        known = ", ".join(map(str, choices))
        raise UserError(f"--set {key}={value}: this implementation knows {known}")
    return value


@dataclass(frozen=True, kw_only=True)
class AdamHyperparameters:
    """The hyperparameters of Adam, for benchmarks that train with it."""

    opt_base_learning_rate: float
    opt_adam_beta_1: float
    opt_adam_beta_2: float
    opt_adam_epsilon: float

    @property
    def torch_options(self) -> dict[str, Any]:
        """The keyword arguments of ``torch.optim.Adam``."""
        return {
            "lr": self.opt_base_learning_rate,
            "betas": (self.opt_adam_beta_1, self.opt_adam_beta_2),
            "eps": self.opt_adam_epsilon,
        }
