"""What many ranks would send, on one: each number is rounded as it would be on its way.

The samples of a batch are shared among simulated ranks. The factors of each share are rounded to
the format in which they would travel before they are added; so are the preconditioned gradients
that all ranks would receive. Training then loses what rounding costs, without the other ranks.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cepheid.second_order import number_formats
from cepheid.second_order.curvature import Curvature, Phase
from cepheid.second_order.exchange import Exchange, Guard
from cepheid.second_order.layers import Layer
from cepheid.second_order.number_formats import Format
from cepheid.second_order.options import Options, UseError
from cepheid.second_order.statistic import Statistic


def round_to(values: Tensor, form: Format) -> Tensor:
    """Return values, of any shape and float32, as they arrive in the format."""
    if form == "float32":
        return values
    flat = number_formats.pack(values.flatten(), form)
    return number_formats.unpack(flat, values.numel(), form).view(values.shape)


class SimulatedExchange(Exchange):
    """An exchange of one rank whose all-gathers round as those of several ranks.

    Raises UseError where there are several ranks already.
    """

    def __init__(self, guard: Guard) -> None:
        super().__init__(0, guard)
        if self.world_size > 1:
            raise UseError(
                f"K-FAC: simulated_ranks is for one rank, and there are {self.world_size}; fix: "
                "leave it out"
            )

    @property
    def is_rounding(self) -> bool:
        """True: numbers are rounded though nothing is sent."""
        return True

    def gather(
        self, parts: Sequence[Tensor], owners: Sequence[int], purpose: str, form: Format = "float32"
    ) -> list[Tensor]:
        """Return each part, of any shape and float32, as ``form`` leaves it."""
        return [round_to(part, form) for part in parts]


class SimulatedCurvature(Curvature):
    """The factors as the owners of many ranks receive them, each share of the samples rounded.

    With ``sums="as_sent"`` each partial sum is rounded too, rank after rank, as where a library
    adds numbers of the format on its way round a ring; in nodes of ``ranks_per_node``, first
    within each node.
    """

    def __init__(
        self, layers: list[Layer], options: Options, exchange: Exchange, phase: Phase
    ) -> None:
        super().__init__(layers, options, exchange, phase)
        # By statistic: the sum of each simulated rank over its samples.
        self._shares: dict[Statistic, dict[int, Tensor]] = defaultdict(dict)

    def collect(self, layer: Layer, add: Callable[..., None], *values: Any) -> None:
        """Call ``add`` once for each simulated rank, with its share of the samples (n, …)."""
        ranks = self.options.simulated_ranks
        samples = next(len(value) for value in reversed(values) if isinstance(value, Tensor))
        if samples < ranks:
            raise UseError(
                f"K-FAC: {samples} samples cannot be shared among {ranks} simulated ranks; fix: "
                "choose fewer simulated_ranks, or larger batches"
            )
        split = [_split(value, samples, ranks) for value in values]
        for rank in range(ranks):
            for statistic in layer.statistics:
                statistic.collected = None
            add(*(shares[rank] for shares in split))
            for statistic in layer.statistics:
                if statistic.collected is not None:
                    shares = self._shares[statistic]
                    earlier = shares.get(rank)
                    added = statistic.collected
                    shares[rank] = added if earlier is None else earlier + added
        for statistic in layer.statistics:  # known to have been collected
            statistic.collected = self._shares.get(statistic, {}).get(0)

    def _compute_batch_mean(self, statistic: Statistic, loss_scale: float) -> Tensor:
        """Compute the mean over all samples, shaped as the statistic, as its owner receives it."""
        shares = self._shares.pop(statistic, None)
        if shares is None:
            return super()._compute_batch_mean(statistic, loss_scale)
        layer, form = self.layer_of[statistic], self.options.factor_format
        of_samples = layer.find_share(statistic, loss_scale)
        sent = [share * of_samples for share in shares.values()]
        self._out_of_range.warn([statistic.name] * len(sent), sent)
        return self._add_up([round_to(each, form) for each in sent])

    def _add_up(self, received: Sequence[Tensor]) -> Tensor:
        if self.options.sums == "float32":
            return number_formats.flush_subnormals(torch.stack(list(received)).sum(0))
        per_node = self.options.ranks_per_node or len(received)
        nodes = [
            self._add_in_a_ring(received[start : start + per_node])
            for start in range(0, len(received), per_node)
        ]
        return self._add_in_a_ring(nodes)

    def _add_in_a_ring(self, received: Sequence[Tensor]) -> Tensor:
        total, *others = received
        for other in others:
            total = round_to(total + other, self.options.factor_format)
        return total


def _split(value: Any, samples: int, ranks: int) -> Sequence[Any]:
    """Share out what has a row for each sample; give every rank the rest, such as moments."""
    if isinstance(value, tuple):  # of a batch norm, where what has one dimension is by channel
        by_part = [
            _split(part, samples, ranks) if part.dim() > 1 else [part] * ranks for part in value
        ]
        return [tuple(shares[rank] for shares in by_part) for rank in range(ranks)]
    if value is not None and len(value) == samples:
        return list(torch.tensor_split(value, ranks))
    return [value] * ranks
