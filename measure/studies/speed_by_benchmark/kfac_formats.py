"""The measurement `formats`: what the formats in which factors travel do to the update.

Ueno et al. 2020 (doi:10.1145/3394486.3403265), section 3.3.3, attribute the failure of half
precision to the small eigenvalues of factors, which rounding breaks. Damping is added to these, so
each format is measured with several dampings.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import get_args

import torch
from torch import Tensor

from cepheid.measure.engine.subject import Measurement, Row, Subject, make_task
from cepheid.measure.engine.turns import take_steps
from cepheid.rules.errors import UserError
from cepheid.second_order.inverse import split_damping
from cepheid.second_order.layers import KroneckerLayer
from cepheid.second_order.number_formats import Format
from cepheid.second_order.simulated import round_to

SETTLE_UPDATES = 60
PUBLISHED_DAMPING = 2.5e-4
SETTINGS = ("precision=fp32", "compile=off", "kfac_stale=false")
DAMPINGS = (1e-2, PUBLISHED_DAMPING, 1e-6)


@dataclass(frozen=True)
class Rounding:
    """What a format does: how far the update moves, and which damped factors lose positivity.

    ``change`` is the norm of the change over that of the update; ``indefinite`` of ``factors`` are
    not positive definite after they were rounded and damped.
    """

    form: Format
    damping: float
    change: float
    indefinite: int
    factors: int


def compare_formats(subject: Subject) -> Measurement:
    """Round the factors of a network in training to each format; compare the updates.

    Raises UserError without K-FAC, or where there are several ranks.
    """
    if subject.ranks.world_size > 1:
        raise UserError(
            f"formats: this is measured on one rank, and there are {subject.ranks.world_size}; "
            "fix: start one process"
        )
    config = subject.configure(*SETTINGS)
    if (chosen := config.hyperparameters["opt_preconditioner"]) != "kfac":
        raise UserError(
            f"--set opt_preconditioner={chosen}: formats are measured on the factors of K-FAC; "
            "fix: leave it out"
        )
    task = make_task(config, subject.ranks, is_warm=False)
    take_steps(task, SETTLE_UPDATES)
    assert task.kfac is not None
    task.loss_and_gradients()
    layers = [layer for layer in task.kfac.layers if isinstance(layer, KroneckerLayer)]
    forms: list[Format] = [form for form in get_args(Format) if form != "float32"]
    found = [measure_rounding(layers, form, damping) for damping in DAMPINGS for form in forms]
    rows = [
        Row(
            f"{each.form}, damping {each.damping:g}",
            f"the update changes by {each.change:.2%} of its norm",
            f"{each.indefinite} of {each.factors} factors indefinite",
        )
        for each in found
    ]
    return Measurement(rows, {"roundings": [asdict(each) for each in found]})


def measure_rounding(layers: Sequence[KroneckerLayer], form: Format, damping: float) -> Rounding:
    """Compute the update of all layers, in float64, with their factors exact and rounded."""
    squares, changes, indefinite = 0.0, 0.0, 0
    for layer in layers:
        exact = layer.averages
        rounded = [round_to(matrix, form) for matrix in exact]
        gradient = layer.gradient().double()
        expected, _ = _precondition(gradient, exact, damping)
        found, lost = _precondition(gradient, rounded, damping)
        squares += float(expected.square().sum())
        changes += float((found - expected).square().sum())
        indefinite += lost
    return Rounding(form, damping, (changes / squares) ** 0.5, indefinite, 2 * len(layers))


def _precondition(
    gradient: Tensor, averages: Sequence[Tensor], damping: float
) -> tuple[Tensor, int]:
    """Return B⁻¹ G A⁻¹, (outputs, inputs), and how many of the two are not positive definite."""
    shares = split_damping(averages, damping, True)
    inputs, outputs = (
        matrix.double()
        + share.double() * torch.eye(len(matrix), dtype=torch.float64, device=matrix.device)
        for matrix, share in zip(averages, shares, strict=True)
    )
    lost = sum(int(torch.linalg.cholesky_ex(each).info) > 0 for each in (inputs, outputs))
    half = torch.linalg.solve(outputs, gradient)
    return torch.linalg.solve(inputs, half, left=False), lost
