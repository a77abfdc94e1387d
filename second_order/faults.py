"""Faults that would otherwise be silent: numbers that a format cannot hold, layers not reached."""

import logging
import zlib
from collections.abc import Sequence
from dataclasses import asdict

import torch
from torch import Tensor

from cepheid.second_order.exchange import Exchange
from cepheid.second_order.layers import Layer
from cepheid.second_order.number_formats import Format, find_range
from cepheid.second_order.options import Options, UseError
from cepheid.second_order.statistic import Statistic

logger = logging.getLogger(__name__)
DIGEST_END = 2**20  # of a fact that ranks compare: sums of squares stay whole numbers of 64 bits


class OutOfRange:
    """What travels in the format of ``option`` and is too large or too small for it.

    Each factor or layer is named once for each of the two. With formats of the range of float32
    nothing is looked for.
    """

    def __init__(self, option: str, form: Format, exchange: Exchange) -> None:
        self._form, self._rank = form, exchange.rank
        self._range = find_range(form) if exchange.is_rounding else None
        self._fix = f'fix: set {option} to "bfloat16", "float21" or "float32"'
        self._named: set[tuple[str, str]] = set()

    @property
    def hint(self) -> str:
        """What to add to the message that a number is not finite."""
        if self._range is None:
            return ""
        return f"; maybe {self._form} cannot hold it (at most {self._range[0]:,.0f}): {self._fix}"

    def warn(self, names: Sequence[str], parts: Sequence[Tensor]) -> None:
        """Warn of parts, of any shape, that this rank is about to send."""
        if self._range is None or not parts:
            return
        highest, lowest = self._range
        for name, largest in zip(names, _find_largest(parts), strict=True):
            if highest < largest < float("inf"):
                self._warn_once(name, largest, f"{self._form} holds at most {highest:,.0f}")
            elif 0 < largest <= lowest:
                self._warn_once(name, largest, f"{self._form} makes 0 of all its values")

    def _warn_once(self, name: str, largest: float, what: str) -> None:
        if (name, what) in self._named:
            return
        self._named.add((name, what))
        logger.warning(
            "K-FAC: %s: its largest value on rank %d is %.4g, but %s; %s",
            name,
            self._rank,
            largest,
            what,
            self._fix,
        )

    def refuse(
        self, names: Sequence[str], parts: Sequence[Tensor], before: Sequence[Tensor] = ()
    ) -> None:
        """Raise UseError if a received part, of any shape, is not finite.

        Nothing is refused if some of ``before``, of any shapes, are not finite already.
        """
        if self._range is None or not parts:
            return
        for name, largest in zip(names, _find_largest(parts), strict=True):
            if not largest < float("inf") and all(bool(each.isfinite().all()) for each in before):
                raise UseError(
                    f"K-FAC: the gradient of {name} is not finite after it was sent as "
                    f"{self._form}, which holds at most {self._range[0]:,.0f}; a warning names its "
                    f"largest value before that if it was finite; {self._fix}"
                )


def _find_largest(parts: Sequence[Tensor]) -> list[float]:
    """Return the largest absolute value of each part; the device is waited for once."""
    return torch.stack([part.abs().max() for part in parts]).tolist()


def warn_of_other_samples(layers: Sequence[Layer]) -> None:
    """Name two layers that saw numbers of samples of which none is a multiple of the other."""
    seen = [layer for layer in layers if layer.samples]
    most = max(seen, key=lambda layer: layer.samples, default=None)
    for layer in seen:
        if most is not None and most.samples % layer.samples:
            logger.warning(
                'K-FAC: layer "%s" saw %d samples and layer "%s" %d; dimension 0 of the inputs of '
                "every layer must be the samples, as with batch_first=True",
                most.label,
                most.samples,
                layer.label,
                layer.samples,
            )
            return


def warn_of_passes_without_gradients(layers: Sequence[Layer]) -> bool:
    """Name a layer that saw more samples than it got gradients of; return True if there is one."""
    for layer in layers:
        if 0 < layer.samples_with_gradients < layer.samples:
            logger.warning(
                'K-FAC: layer "%s" saw %d samples, but gradients of %d: passes that no backward '
                "pass follows make its factors wrong; run them in torch.no_grad() or kfac.pause()",
                layer.label,
                layer.samples,
                layer.samples_with_gradients,
            )
            return True
    return False


def refuse_other_ranks(layers: Sequence[Layer], options: Options, exchange: Exchange) -> None:
    """Raise UseError, on all ranks, if their options or layers differ."""
    if exchange.world_size == 1:
        return
    facts = asdict(options) | {"the model": [(layer.name, layer.shape) for layer in layers]}
    digests = [zlib.crc32(repr(value).encode()) % DIGEST_END for value in facts.values()]
    own = torch.tensor(digests, device=layers[0].device)
    # All values of n ranks are equal where n Σ x² = (Σ x)².
    sums, squares = exchange.sum(torch.stack((own, own.square())), "check")
    differing = exchange.world_size * squares != sums.square()
    names = [name for name, differs in zip(facts, differing.tolist(), strict=True) if differs]
    if names:
        raise UseError(
            f"K-FAC: {', '.join(names)}: not the same on all ranks; fix: give every rank the same "
            f"model and options (rank {exchange.rank} has {names[0]} {facts[names[0]]!r:.200})"
        )


def refuse_uneven_layers(
    layers: Sequence[Layer], due: Sequence[Statistic], exchange: Exchange
) -> None:
    """Raise UseError, on all ranks, for layers whose factors and gradients do not belong together.

    Such a layer saw other samples or gradients on some ranks, or it has a gradient although a
    factor that is ``due`` saw none of its passes. It is raised too if no layer has
    a gradient.
    """
    missing = {statistic for statistic in due if statistic.collected is None}
    # Trained on passes that their missing factors did not see.
    lost = [not missing.isdisjoint(layer.statistics) and layer.is_trained for layer in layers]
    if exchange.world_size == 1:
        _refuse_incomplete(layers, lost)
        return
    seen = torch.tensor(
        [
            [layer.samples, int(layer.has_gradient), int(is_lost)]
            for layer, is_lost in zip(layers, lost, strict=True)
        ]
    ).to(layers[0].device, non_blocking=True)
    # All values of n ranks are equal where n Σ x² = (Σ x)².
    sums, squares = exchange.sum(torch.stack((seen, seen.square())), "check")
    differs = (exchange.world_size * squares != sums.square())[:, :2].any(1)
    uneven, losses = torch.stack((differs.to(sums.dtype), sums[:, 2])).tolist()  # waited for once
    if not any(uneven):
        _refuse_incomplete(layers, losses)
        return
    table = torch.zeros(exchange.world_size, *seen.shape, dtype=seen.dtype, device=seen.device)
    table[exchange.rank] = seen
    place = next(place for place, differs in enumerate(uneven) if differs)
    of_ranks = exchange.sum(table, "check")[:, place].tolist()
    counts = ", ".join(
        f"rank {rank} {samples} samples{'' if has_gradient else ' and no gradient'}"
        for rank, (samples, has_gradient, _) in enumerate(of_ranks)
    )
    raise UseError(
        f'K-FAC: layer "{layers[place].label}" was not reached by all ranks alike: {counts}; fix: '
        "pass as many samples through it on every rank, or leave it out with skip"
    )


def _refuse_incomplete(layers: Sequence[Layer], lost: Sequence[int | bool]) -> None:
    """Raise UseError without any gradient, or for the first layer ``lost`` on some rank."""
    if not any(layer.has_gradient for layer in layers):
        raise UseError(
            "K-FAC: step: none of its layers has a gradient; fix: call backward() before step(), "
            "and zero_grad() after it"
        )
    for layer, is_lost in zip(layers, lost, strict=True):
        if is_lost:
            raise UseError(
                f'K-FAC: layer "{layer.label}" has a gradient, but its factors are due and saw no '
                "pass of this step; fix: call zero_grad() after each step, and attach() before the "
                "passes of a step with is_due, call the module itself and give its output to no "
                "operation in place through a slice, use checkpoint(…, use_reentrant=False), or "
                "leave it out with skip"
            )
