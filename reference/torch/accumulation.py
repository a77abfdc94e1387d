"""Gradient accumulation: a rank takes its share of a global batch in pieces, to save memory.

The mathematics is that of the whole share. The loss of each piece is weighted by its part of the
share, gradients add up over the pieces and are averaged over the ranks once, and batch norms keep
the samples over which they normalise (``TorchTask.unite``).
"""

import gc
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from cepheid.reference.run.execution import Execution
from cepheid.reference.torch.batch_norm import SpanBatchNorm2d
from cepheid.reference.torch.execution import is_out_of_memory
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.rules.errors import UserError

SETTING = "micro_batch"


def find_piece_size(settings: Execution, share: int) -> int:
    """Return the samples of a piece; without a number in ``settings`` it is the whole share."""
    size = settings.micro_batch
    return min(int(size), share) if size.isdecimal() else share


def refuse_uneven_pieces(
    settings: Execution, sizes: Sequence[int], why: str, other_fix: str = ""
) -> None:
    """Raise UserError unless the pieces of ``settings`` have one of the possible ``sizes``.

    The sizes go from the rank's whole share down. ``why`` says what limits them, ``other_fix`` what
    would make the pieces possible.
    """
    wanted = settings.micro_batch
    if not wanted.isdecimal() or int(wanted) in sizes:
        return
    above = [size for size in sizes if size > int(wanted)][-1:]
    below = [size for size in sizes if size < int(wanted)][:1]
    nearest = " or ".join(map(str, below + above))
    raise UserError(
        f"--set {SETTING}={wanted}: a rank's {sizes[0]} samples of a step cannot be taken in such "
        f"pieces: {why}; fix: set {SETTING} to {nearest}, or leave it out"
        f"{other_fix and f', or {other_fix}'}"
    )


def refuse_other_norms(model: nn.Module) -> None:
    """Raise UserError where a batch norm of ``model`` would normalise over a piece alone."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and not isinstance(module, SpanBatchNorm2d):
            raise UserError(
                f'{SETTING}: layer "{name}" ({type(module).__name__}) would normalise over the '
                f"samples of a piece, not of the batch; fix: set {SETTING}=whole, or use a norm "
                "of cepheid.reference.torch.batch_norm"
            )


def fit_pieces(
    requested: Execution,
    make_smaller: Callable[[Execution], Execution | None],
    fits: Callable[[Execution], bool] | None,
    ranks: TorchRanks,
) -> Execution:
    """Return ``requested`` with the largest pieces for which a step fits into memory.

    ``make_smaller`` returns settings with smaller pieces, or None where there are none. ``fits``
    tries a step on this rank alone; it must fit on all. It is None where no rank can do so, because
    several compute the same samples: then the share stays whole. Only ``auto`` is replaced. The
    smallest pieces are not tried: the warm-up explains what to do where they do not fit either.
    """
    if requested.micro_batch != "auto":
        return requested
    if fits is None:
        return requested.with_setting(SETTING, "whole", "a rank cannot try a step alone")
    settings = requested.with_setting(SETTING, "whole", "the whole share of a rank fits")
    while smaller := make_smaller(settings):
        if ranks.is_true_everywhere(fits(settings)):
            return settings
        settings = smaller
    if settings.micro_batch == "whole":
        return settings.with_setting(SETTING, "whole", "the only candidate")
    return settings


def try_step(step: Callable[[], object], model: nn.Module) -> bool:
    """Return True if ``step``, forward and backward, fits into memory.

    Memory for two more values of each parameter is kept free: that is the state of Adam.
    """
    fits = True
    reserved: list[Tensor] = []
    try:
        reserved += (torch.empty_like(p) for p in model.parameters() for _ in range(2))
        step()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        fits = False
    reserved.clear()
    model.zero_grad()
    if torch.cuda.is_available():  # the pieces of memory of this try do not fit the next one
        gc.collect()
        torch.cuda.empty_cache()
    return fits
