"""The curvature of all layers: factors collected, exchanged, averaged and inverted."""

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from itertools import compress, islice
from typing import Any

import torch
from torch import Tensor

from cepheid.second_order.exchange import Exchange, Sums, assign_owners
from cepheid.second_order.faults import (
    OutOfRange,
    refuse_uneven_layers,
    warn_of_other_samples,
    warn_of_passes_without_gradients,
)
from cepheid.second_order.layers import KroneckerLayer, Layer
from cepheid.second_order.options import Options, UseError
from cepheid.second_order.statistic import (
    Interval,
    Statistic,
    compute_steps_to_next,
    factorize_cholesky,
    factorize_eigen,
    split_damping,
)

NON_FINITE_IN_A_ROW_MAX = 20  # a loss scale that adapts has settled by then
DAMPING_CHANGE_MAX = 1.25  # by which factor λ may differ from that of a stale factor's inverse

Phase = Callable[[str], AbstractContextManager[object]]

logger = logging.getLogger(__name__)


class Curvature:
    """The factors of ``layers``, each on the ranks that invert it."""

    def __init__(
        self, layers: list[Layer], options: Options, exchange: Exchange, phase: Phase = nullcontext
    ) -> None:
        self.layers, self.options, self.exchange = layers, options, exchange
        self.phase = phase
        self.damping = self.inverted_damping = options.damping
        self.steps = 0
        self.owners = assign_owners([layer.cost for layer in layers], exchange.world_size)
        self.owner_of = dict(zip(layers, self.owners.of_layer, strict=True))
        self.layer_of = {stat: layer for layer in layers for stat in layer.statistics}
        self._input_sums: Sums | None = None
        self._has_warned = False
        self._out_of_range = OutOfRange("factor_format", options.factor_format, exchange)
        # Alone a rank sends nothing, and folding matrices would be for nothing.
        self._sends_triangles = options.symmetric and exchange.world_size > 1

    def change_damping(self, damping: float) -> None:
        """Set λ. Where it has moved far, the next step inverts all factors again, stale ones too.

        Eigenvalues are damped in each step, so only inverses by Cholesky keep the λ of their time.
        """
        self.damping = damping
        change = max(damping / self.inverted_damping, self.inverted_damping / damping)
        if change > DAMPING_CHANGE_MAX:
            self.inverted_damping = damping
            if self.options.inverse == "cholesky":
                for statistic in self.layer_of:
                    statistic.factored = None

    @property
    def inputs_are_sent(self) -> bool:
        """True between ``send_inputs`` and the refresh."""
        return self._input_sums is not None

    def is_due(self, statistic: Statistic) -> bool:
        """Return True if this step refreshes the statistic."""
        return statistic.interval.due <= self.steps

    def is_mine(self, layer: Layer) -> bool:
        """Return True if this rank preconditions the gradient of the layer."""
        return not self.options.distribute_inverse or self.owner_of[layer] == self.exchange.rank

    def collect(self, layer: Layer, add: Callable[..., None], *values: Any) -> None:
        """Call ``add``, a method of the layer that adds to its factors, with values (n, …)."""
        add(*values)

    def send_inputs(self) -> Sums:
        """Begin to send the inputs' factors, which are complete, unless that has begun."""
        if self._input_sums is None:
            self._input_sums = self._start_sums(self._find_due(of_inputs=True), 1.0)
        return self._input_sums

    def refresh(self, loss_scale: float) -> None:
        """Bring the factors that are due up to date, averages and inverses, where they live."""
        inputs, outputs = self._find_due(of_inputs=True), self._find_due(of_inputs=False)
        input_sums = self.send_inputs()
        due = inputs + outputs
        refuse_uneven_layers(self.layers, due, self.exchange)  # after what overlap may have sent
        if self.steps == 0:
            warn_of_other_samples(self.layers)
        if not self._has_warned and self.options.fisher == "empirical":
            self._has_warned = warn_of_passes_without_gradients(self.layers)
        output_sums = self._start_sums(outputs, loss_scale)
        means = self._receive_means(inputs, input_sums()) | self._receive_means(
            outputs, output_sums()
        )
        if not self.options.distribute_inverse:
            means = self._share_means(due, means)
        with self.phase("inverse"):
            following = self._fold(means)
            self._factorise(set(following))
        self._schedule(due, following)
        for statistic in self.layer_of:
            statistic.collected = None
        for layer in self.layers:
            layer.samples = layer.samples_with_gradients = 0
        self._input_sums = None
        self.steps += 1

    def _find_due(self, of_inputs: bool) -> list[Statistic]:
        due = filter(self.is_due, self.layer_of)
        return [statistic for statistic in due if statistic.of_inputs == of_inputs]

    def _start_sums(self, due: list[Statistic], loss_scale: float) -> Sums:
        """Begin to send this rank's share of the mean over all samples of all ranks."""
        parts = [
            statistic.pack(self._compute_batch_mean(statistic, loss_scale), self._sends_triangles)
            for statistic in due
        ]
        owners = [self._find_owner(statistic) for statistic in due]
        self._out_of_range.warn([statistic.name for statistic in due], parts)
        return self.exchange.start_sums(parts, owners, "factors", self.options.factor_format)

    def _compute_batch_mean(self, statistic: Statistic, loss_scale: float) -> Tensor:
        """Compute the mean over this rank's samples, divided by the number of ranks."""
        layer = self.layer_of[statistic]
        if statistic.collected is None:
            return torch.zeros(statistic.shape, device=layer.device)
        share = layer.find_share(statistic, loss_scale) / self.exchange.world_size
        return statistic.collected.mul_(share)

    def _find_owner(self, statistic: Statistic) -> int:
        return self.owner_of[self.layer_of[statistic]]

    def _receive_means(self, due: list[Statistic], sums: list[Tensor]) -> dict[Statistic, Tensor]:
        """Return the means that this rank owns; a layer that no pass has reached has none."""
        mine = [statistic for statistic in due if self._find_owner(statistic) == self.exchange.rank]
        return {
            statistic: statistic.unpack(flat, self._sends_triangles)
            for statistic, flat in zip(mine, sums, strict=True)
            if statistic.collected is not None
        }

    def _share_means(
        self, due: list[Statistic], means: dict[Statistic, Tensor]
    ) -> dict[Statistic, Tensor]:
        """Return on every rank the means that their owners have."""
        seen = [statistic for statistic in due if statistic.collected is not None]
        parts = [
            statistic.pack(means[statistic], self._sends_triangles)
            if statistic in means
            else torch.empty(
                statistic.count_packed(self._sends_triangles),
                device=self.layer_of[statistic].device,
            )
            for statistic in seen
        ]
        owners = [self._find_owner(statistic) for statistic in seen]
        mine = [place for place, statistic in enumerate(seen) if statistic in means]
        self._out_of_range.warn(
            [seen[place].name for place in mine], [parts[place] for place in mine]
        )
        flat = self.exchange.gather(parts, owners, "factors", self.options.factor_format)
        return {
            statistic: statistic.unpack(part, self._sends_triangles)
            for statistic, part in zip(seen, flat, strict=True)
        }

    def _keep_finite(
        self, means: dict[Statistic, Tensor], finite: Sequence[float]
    ) -> dict[Statistic, Tensor]:
        """Leave out means with infinity or NaN, as after an overflow with a loss scale."""
        for statistic, is_finite in zip(means, finite, strict=True):
            statistic.non_finite = 0 if is_finite else statistic.non_finite + 1
            if is_finite:
                continue
            logger.warning(
                "K-FAC: %s is not finite; it is left as it was%s",
                statistic.name,
                self._out_of_range.hint,
            )
            if statistic.non_finite > NON_FINITE_IN_A_ROW_MAX:
                raise UseError(
                    f"K-FAC: {statistic.name} was not finite in {statistic.non_finite} steps in a "
                    "row: the training has diverged; lower the learning rate or raise damping"
                    f"{self._out_of_range.hint}"
                )
        return {statistic: mean for statistic, mean in means.items() if not statistic.non_finite}

    def _fold(self, means: dict[Statistic, Tensor]) -> dict[Statistic, tuple[int, float]]:
        """Fold the means of this batch into the running averages, but for those not finite.

        Returns for each the steps to its next refresh and how far the average has moved, relative
        to its norm before. The device is waited for once.
        """
        if not means:
            return {}
        decay = self.options.average_decay
        told = [torch.stack([mean.sum().isfinite() for mean in means.values()])]
        if not self.options.stale:
            fresh = self._keep_finite(means, told[0].tolist())
            for statistic, mean in fresh.items():
                old = statistic.average
                if old is None:  # never the mean itself, which may be part of all that was received
                    statistic.average = mean.clone()
                else:
                    torch.lerp(mean, old, decay, out=old)
            return dict.fromkeys(fresh, (1, math.inf))
        folded: dict[Statistic, tuple[Tensor, list[Tensor]]] = {}
        for statistic, mean in means.items():
            old = statistic.average
            new = mean.clone() if old is None else mean.lerp(old, decay)
            folded[statistic] = new, [] if old is None else [old, *statistic.before][:2]
        pairs = [(new, before) for new, olds in folded.values() for before in olds]
        if pairs:
            moved = torch.stack([torch.dist(new, before) for new, before in pairs])
            told.append(moved / torch.stack([before.norm() for _, before in pairs]))
        answers = iter(torch.cat(told).tolist())
        fresh = self._keep_finite(means, list(islice(answers, len(means))))
        following: dict[Statistic, tuple[int, float]] = {}
        for statistic, (new, olds) in folded.items():
            one_before, two_before = [*islice(answers, len(olds)), math.inf, math.inf][:2]
            if statistic not in fresh:
                continue
            statistic.average, statistic.before = new, olds
            tolerance = self.options.stale_tolerance
            steps = self.options.stale_interval or compute_steps_to_next(
                statistic.interval, one_before, two_before, tolerance
            )
            following[statistic] = steps, one_before
        return following

    def _factorise(self, fresh: set[Statistic]) -> None:
        """Invert what has changed, each factor with its share of the damping as it is now."""
        chosen: list[Statistic] = []
        matrices: list[Tensor] = []
        dampings: list[Tensor] = []
        for layer in self.layers:
            if not (isinstance(layer, KroneckerLayer) and layer.is_ready):
                continue
            changed = [
                statistic in fresh or statistic.factored is None for statistic in layer.statistics
            ]
            if not any(changed):
                continue
            averages = layer.averages
            shares = split_damping(averages, self.damping, self.options.pi_correction)
            triples = zip(layer.statistics, averages, shares, strict=True)
            for statistic, matrix, share in compress(triples, changed):
                chosen.append(statistic)
                matrices.append(matrix)
                dampings.append(share)
        self._invert(chosen, matrices, dampings)

    def _invert(
        self, chosen: list[Statistic], matrices: list[Tensor], dampings: list[Tensor]
    ) -> None:
        if self.options.inverse == "eigen":
            factored = factorize_eigen(matrices, dampings)
        else:
            names = [statistic.name for statistic in chosen]
            products = torch.bfloat16 if self.options.bfloat16_products else torch.float32
            factored = factorize_cholesky(names, matrices, dampings, products)
        for statistic, result in zip(chosen, factored, strict=True):
            statistic.factored = result

    def _schedule(
        self, due: list[Statistic], following: dict[Statistic, tuple[int, float]]
    ) -> None:
        """Schedule the next refresh of each factor; with ``stale`` its owner informs all ranks."""
        if not self.options.stale:
            following_of_all: Sequence[tuple[float, float]] = [(1.0, math.inf)] * len(due)
        elif due:
            known = [
                following.get(statistic, (0, math.inf))
                if self._find_owner(statistic) == self.exchange.rank
                else (0, 0.0)
                for statistic in due
            ]
            following_of_all = known
            if self.exchange.world_size > 1:
                device = self.layer_of[due[0]].device
                values = torch.tensor(known).to(device, non_blocking=True)
                following_of_all = self.exchange.sum(values, "intervals").tolist()
        else:
            following_of_all = []
        for statistic, (steps, distance) in zip(due, following_of_all, strict=True):
            interval = statistic.interval
            statistic.interval = (
                interval.record_refresh(self.steps, int(steps), distance)
                if steps
                else interval.record_failure(self.steps)
            )

    def state_dict(self) -> dict[str, Any]:
        """Return steps, damping and all factors of all owners; every rank must call this."""
        device = self.layers[0].device
        kept = {
            statistic: statistic.dump_state()
            if self._find_owner(statistic) == self.exchange.rank
            else []
            for statistic in self.layer_of
        }
        lengths = torch.tensor([len(tensors) for tensors in kept.values()], device=device)
        counts = self.exchange.sum(lengths, "state").tolist()
        parts: list[Tensor] = []
        owners: list[int] = []
        for (statistic, tensors), count in zip(kept.items(), counts, strict=True):
            parts += tensors or statistic.allocate_state(count, device)
            owners += [self._find_owner(statistic)] * count
        values = iter(self.exchange.gather(parts, owners, "state"))
        return {
            "steps": self.steps,
            "damping": self.damping,
            "inverted_damping": self.inverted_damping,
            "factors": {
                statistic.name: {
                    "interval": asdict(statistic.interval),
                    "tensors": [next(values).clone() for _ in range(count)],
                }
                for statistic, count in zip(kept, counts, strict=True)
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a ``state_dict``. Raises UseError if it belongs to another model."""
        saved = state.get("factors", {})
        for statistic in self.layer_of:
            tensors = saved.get(statistic.name, {"tensors": []})["tensors"]
            shapes = {tuple(tensor.shape) for tensor in tensors[1:]}
            if statistic.name not in saved or not shapes <= {statistic.shape}:
                raise UseError(
                    f"K-FAC: the saved state has no {statistic.name} of size {statistic.size}: it "
                    "is of another model, or other layers were skipped"
                )
        self.steps, self.damping = state["steps"], state["damping"]
        self.inverted_damping = state.get("inverted_damping", self.damping)
        self._input_sums = None
        dampings: dict[Statistic, Tensor] = {}
        for statistic, layer in self.layer_of.items():
            layer.samples = layer.samples_with_gradients = 0
            statistic.forget()
            statistic.interval = Interval(**saved[statistic.name]["interval"])
            tensors = [tensor.to(layer.device) for tensor in saved[statistic.name]["tensors"]]
            if self.is_mine(layer) and tensors:
                damping, statistic.average, *statistic.before = tensors
                if damping.isfinite():
                    dampings[statistic] = damping
        matrices = [statistic.average for statistic in dampings if statistic.average is not None]
        self._invert(list(dampings), matrices, list(dampings.values()))
