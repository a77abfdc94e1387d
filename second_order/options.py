"""What K-FAC does and how, each with its own switch, and the error where that cannot be."""

import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Literal, get_args

from cepheid.second_order.number_formats import Format

Fisher = Literal["empirical", "sampled", "exact", "gauss_newton"]
Inverse = Literal["cholesky", "eigen"]
Rescaling = Literal["none", "kl_clip", "norm"]
Sums = Literal["float32", "as_sent"]
Unsupported = Literal["skip", "refuse"]


class UseError(ValueError):
    """The library was used wrongly: the message says what is wrong, where, and how to fix it.

    A program may print the message alone: ``is_wrong_use`` tells this error from a bug.
    """

    is_wrong_use = True


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a suggestion to append to a message, or nothing if no known word is close."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f'; did you mean "{close[0]}"?' if close else ""


def refuse_not_positive(name: str, value: object) -> None:
    """Raise UseError unless the option is a number above 0 and finite."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not 0 < float(value) < math.inf:  # type: ignore[arg-type]
        raise UseError(f"K-FAC: {name} is {value!r}; it must be a number above 0 and finite")


@dataclass(frozen=True)
class Options:
    """The options of K-FAC; by default one level, full precision, refreshed at every step.

    The mathematics: ``damping`` λ; ``average_decay``, the share of the running average that a
    refresh keeps (0 as published); which ``fisher``: "empirical", of the labels of the batch;
    "sampled", of ``fisher_samples`` labels that are drawn from the predictions of each sample;
    "exact", the mean over all labels, with a backward pass per class; "gauss_newton", of the
    Hessian of any convex loss, with a backward pass per output; which ``inverse``;
    ``pi_correction``, to share damping between the two factors of a layer by their mean
    eigenvalues; ``batch_norm_damping``, as a multiple of λ (64 in chainerkfac); ``rescaling`` of
    the preconditioned gradient, by a bound on the (approximate) KL divergence of the step,
    ``kl_clip``, or to the norm that each layer's gradient had. ``bfloat16_products`` multiplies
    gradients by inverses in bfloat16, whatever the layers compute in, where the inverses are
    explicit ones: with "cholesky", for wide gradients and where an inverse serves often. That is
    off by up to 2⁻⁷ ‖A⁻¹‖ ‖G‖ ‖B⁻¹‖: directions of high curvature, which the inverses make small,
    may be lost in the rounding of the others.

    The layers: names (with ``*`` and ``?``) to ``skip``, whether layers that K-FAC has no factors
    for are left to the optimizer or refused.

    The switches of table 1 of Ueno et al. 2020, which change the update by rounding only, but for
    the last: ``distribute_inverse`` (else every rank inverts everything); ``symmetric`` (upper
    triangles travel); ``factor_format`` and ``gradient_format``, in which factors and gradients
    travel (float21 for factors in the paper); ``overlap`` (inputs' factors travel during the
    backward pass); ``ranks_per_node`` (0: one level); ``stale`` (a factor is refreshed only as
    often as it changes, by ``stale_tolerance``, or every ``stale_interval`` steps, where not 0).

    ``simulated_ranks`` is for one rank: factors and preconditioned gradients are rounded as they
    would be on their way between so many ranks (0: nothing travels, nothing is rounded). Partial
    ``sums`` are formed in "float32", as ``Exchange`` does, or rounded too, "as_sent".

    Algorithm 1: ``average_gradients`` takes over the averaging of gradients over ranks, each to the
    owner of its layer; ``shard_update`` leaves gradients with the owners, who alone update their
    weights, and ``KFAC.share_weights`` sends these round.
    """

    damping: float = 1e-3
    average_decay: float = 0.95
    fisher: Fisher = "empirical"
    fisher_samples: int = 1
    inverse: Inverse = "cholesky"
    pi_correction: bool = True
    batch_norm_damping: float = 1.0
    rescaling: Rescaling = "none"
    kl_clip: float = 1e-3
    bfloat16_products: bool = False

    skip: tuple[str, ...] = ()
    unsupported: Unsupported = "skip"

    distribute_inverse: bool = True
    symmetric: bool = True
    factor_format: Format = "float32"
    gradient_format: Format = "float32"
    overlap: bool = False
    ranks_per_node: int = 0
    stale: bool = False
    stale_tolerance: float = 0.1
    stale_interval: int = 0
    simulated_ranks: int = 0
    sums: Sums = "float32"

    average_gradients: bool = False
    shard_update: bool = False

    def __post_init__(self) -> None:
        """Check the options. Raises UseError, which names the wrong option."""
        for name, choices in (
            ("fisher", get_args(Fisher)),
            ("inverse", get_args(Inverse)),
            ("rescaling", get_args(Rescaling)),
            ("unsupported", get_args(Unsupported)),
            ("factor_format", get_args(Format)),
            ("gradient_format", get_args(Format)),
            ("sums", get_args(Sums)),
        ):
            if getattr(self, name) not in choices:
                value = getattr(self, name)
                raise UseError(f"K-FAC: {name} is {value!r}; fix: set {' or '.join(choices)}")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, bool) and not isinstance(value, bool):
                raise UseError(f"K-FAC: {field.name} is {value!r}; fix: set True or False")
        names = self.skip
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise UseError(
                f"K-FAC: skip is {names!r}; expected names of layers; fix: give a tuple, such as "
                'skip=("head",)'
            )
        for name in ("damping", "batch_norm_damping", "kl_clip", "stale_tolerance"):
            refuse_not_positive(name, getattr(self, name))
        if not isinstance(self.average_decay, Real) or not 0 <= self.average_decay < 1:
            raise UseError(f"K-FAC: average_decay is {self.average_decay}; it must be in [0, 1)")
        counts = ("ranks_per_node", "simulated_ranks", "stale_interval")
        for name, least in (("fisher_samples", 1), *((each, 0) for each in counts)):
            value = getattr(self, name)
            if not isinstance(value, Integral) or value < least:
                raise UseError(f"K-FAC: {name} is {value}; it must be a whole number from {least}")
        if self.fisher_samples > 1 and self.fisher != "sampled":
            raise UseError(
                f"K-FAC: fisher_samples is {self.fisher_samples}, but nothing is drawn with "
                f'fisher="{self.fisher}"; fix: leave it out, or set fisher="sampled"'
            )
        if self.sums != "float32" and not self.simulated_ranks:
            raise UseError(
                f'K-FAC: sums is "{self.sums}", but ranks that communicate add in float32; fix: '
                "set simulated_ranks, or leave sums out"
            )
        if self.shard_update and not self.distribute_inverse:
            raise UseError(
                "K-FAC: shard_update needs distribute_inverse: only then has each layer one owner"
            )
