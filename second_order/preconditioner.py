"""K-FAC as a preconditioner in front of any optimizer of torch.optim."""

import logging
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import fields
from typing import Any, Never

import torch
from torch import Tensor, nn

from cepheid.second_order.curvature import Curvature, Phase
from cepheid.second_order.exchange import Exchange, Guard, Owners
from cepheid.second_order.faults import OutOfRange, refuse_other_ranks
from cepheid.second_order.layers import (
    LEFT_OUT_ON_PURPOSE,
    BatchNormLayer,
    KroneckerLayer,
    Layer,
    find_layers,
)
from cepheid.second_order.observer import Observer
from cepheid.second_order.options import Options, UseError, did_you_mean, refuse_not_positive
from cepheid.second_order.simulated import SimulatedCurvature, SimulatedExchange
from cepheid.second_order.statistic import Interval, precondition_unit_wise

NAMED_MAX = 3  # layers in a warning

logger = logging.getLogger(__name__)


class KFAC(Observer):
    """A preconditioner that multiplies gradients by the inverse of the Fisher matrix.

    Ueno et al. 2020 (doi:10.1145/3394486.3403265): block-diagonal by layer, Kronecker-factored for
    ``Linear``, ``Conv2d`` and ``Embedding``, unit-wise for batch normalisation. ::

        kfac = KFAC(model, Options(damping=1e-3))
        loss.backward()   # the mean over the samples; gradients averaged over ranks, as DDP does
        kfac.step()
        optimizer.step()

    The factors are those of all samples that passed through the model since the last ``step``, so
    gradients may be accumulated, as long as they add up to the mean over these samples. Every rank
    has the same number of them, passes them through the same layers and calls the same methods in
    the same order. Dimension 0 of the inputs of every layer must be the samples. Nothing is
    observed under ``torch.no_grad``. A module called twice in a pass counts as twice the samples.
    Passes that activation checkpointing recomputes are ignored, so it must not be reentrant. A
    model may run under ``torch.compile`` in steps without ``is_due``, after ``detach``.

    ``guard`` is entered around every collective, to turn the loss of a rank into an error of the
    caller's; ``phase`` around the making of factors and of inverses, with "factors" or "inverse",
    for a profiler. Layers without factors and ranks without a layer are named in a warning. Raises
    UseError for a model or options that are not supported.
    """

    def __init__(
        self,
        model: nn.Module,
        options: Options | None = None,
        guard: Guard = nullcontext,
        phase: Phase = nullcontext,
        **others: Never,
    ) -> None:
        _refuse_keywords(others)
        options = Options() if options is None else options
        _refuse_other_types(model, options)
        layers, self.left_out = find_layers(model, options)
        if options.simulated_ranks:
            self.exchange: Exchange = SimulatedExchange(guard)
            self.curvature: Curvature = SimulatedCurvature(layers, options, self.exchange, phase)
        else:
            self.exchange = Exchange(options.ranks_per_node, guard)
            refuse_other_ranks(layers, options, self.exchange)
            self.exchange.sent.clear()
            self.curvature = Curvature(layers, options, self.exchange, phase)
        super().__init__(layers, options, self.curvature, phase)
        self.bytes_sent: dict[tuple[str, str], int] = {}  # by this rank in the last update
        self._out_of_range = OutOfRange("gradient_format", options.gradient_format, self.exchange)
        self._inside = [parameter for layer in self.layers for parameter in layer.parameters]
        inside = set(self._inside)
        self._outside = [p for p in model.parameters() if p.requires_grad and p not in inside]
        if self.exchange.rank == 0:
            self._warn_of_idle()

    def _warn_of_idle(self) -> None:
        """Name the layers that have no factors, and the ranks that have no layer."""
        reasons = [
            f'"{name}" ({reason})'
            for name, reason in self.left_out.items()
            if reason not in LEFT_OUT_ON_PURPOSE
        ]
        if reasons:
            more = f" and {len(reasons) - NAMED_MAX} more" if len(reasons) > NAMED_MAX else ""
            logger.warning(
                "K-FAC: %s%s: left to the optimizer alone; skip them by name, if that is right, or "
                'set unsupported to "refuse"',
                ", ".join(reasons[:NAMED_MAX]),
                more,
            )
        if self.options.distribute_inverse and (idle := self.owners.idle_ranks):
            logger.warning(
                "K-FAC: %d ranks, but %d layers to invert: %s idle meanwhile",
                self.exchange.world_size,
                len(self.layers),
                f"rank {idle[0]} is" if len(idle) == 1 else f"{len(idle)} ranks are",
            )

    def remove(self) -> None:
        """Remove the hooks from the model and destroy the process groups, on every rank."""
        super().remove()
        self.exchange.close()

    @property
    def damping(self) -> float:
        """λ; may be changed between steps, as by a schedule.

        Raises UseError unless it is above 0 and finite.
        """
        return self.curvature.damping

    @damping.setter
    def damping(self, damping: float) -> None:
        refuse_not_positive("damping", damping)
        self.curvature.change_damping(damping)

    @property
    def owners(self) -> Owners:
        """The rank that inverts each layer, and the balance of the work."""
        return self.curvature.owners

    # One step.

    @torch.no_grad()
    def step(self, learning_rate: float | None = None, loss_scale: float = 1.0) -> None:
        """Refresh the factors that are due and precondition all gradients in place.

        ``learning_rate`` is needed with ``kl_clip`` only. ``loss_scale`` is what the loss was
        multiplied by in the backward pass, where the gradients have been unscaled since
        (``torch.amp.GradScaler``). With ``shard_update`` the gradients of layers that other ranks
        own are None afterwards, so that an optimizer leaves them alone.

        Raises UseError without gradients, for factors that stay singular or not finite, for
        directions that ``gradient_format`` cannot hold unless some gradients were not finite
        before, and for a scaled loss where gradients are averaged here.
        """
        if self.options.rescaling == "kl_clip" and learning_rate is None:
            raise UseError(
                "K-FAC: rescaling by kl_clip needs the learning rate; fix: call "
                "step(learning_rate=…)"
            )
        refuse_not_positive("loss_scale", loss_scale)
        if loss_scale != 1 and self.options.average_gradients and self.exchange.world_size > 1:
            raise UseError(
                "K-FAC: with average_gradients or shard_update each rank would find overflows of a "
                "scaled loss in its own gradients alone; use bfloat16, or leave both off"
            )
        self.refuse_unobserved()
        self.curvature.refresh(loss_scale)
        gradients = self._average_gradients()
        directions, product = self.compute_directions(gradients)
        self._rescale(directions, gradients, product, learning_rate)
        self._distribute(directions, loss_scale)
        self.bytes_sent = dict(self.exchange.sent)
        self.exchange.sent.clear()

    def compute_directions(
        self, gradients: dict[Layer, Tensor]
    ) -> tuple[dict[Layer, Tensor], Tensor]:
        """Multiply the gradients by the inverses of the damped Fisher blocks.

        The gradients of layers whose factors are not known yet stay as they are. Also returns the
        sum of all products of gradients and directions, a scalar; it is 0 without ``kl_clip``,
        which alone needs it.
        """
        is_clipped = self.options.rescaling == "kl_clip"
        found = dict(gradients)
        norms: list[BatchNormLayer] = []
        products: list[Tensor] = []
        for layer, gradient in gradients.items():
            if isinstance(layer, BatchNormLayer) and layer.is_ready:
                norms.append(layer)
                continue
            if isinstance(layer, KroneckerLayer) and layer.is_ready:
                found[layer] = layer.compute_direction(gradient, self.damping)
            if is_clipped:
                products.append(torch.dot(found[layer].flatten(), gradient.flatten()))
        if norms:  # all channels of all of them are alike
            fisher = torch.cat([average for layer in norms for average in layer.averages], dim=1)
            gradient = torch.cat([gradients[layer] for layer in norms], dim=1)
            damping = self.damping * self.options.batch_norm_damping
            channels = [layer.shape[1] for layer in norms]
            direction = precondition_unit_wise(gradient, fisher, damping)
            if is_clipped:
                products.append(torch.dot(direction.flatten(), gradient.flatten()))
            found |= dict(zip(norms, direction.split(channels, dim=1), strict=True))
        device = self.layers[0].device
        return found, torch.stack(products).sum() if products else torch.zeros((), device=device)

    def _average_gradients(self) -> dict[Layer, Tensor]:
        """Return the mean gradients over all ranks of the layers that this rank preconditions."""
        layers = [layer for layer in self.layers if layer.has_gradient]
        ranks = self.exchange.world_size
        if not self.options.average_gradients or ranks == 1:
            return {layer: layer.gradient() for layer in layers if self.curvature.is_mine(layer)}
        self._average(self._outside)
        if not self.options.distribute_inverse:
            self._average([parameter for layer in layers for parameter in layer.parameters])
            return {layer: layer.gradient() for layer in layers}
        parts = [(layer.gradient() / ranks).flatten() for layer in layers]
        owners = [self.curvature.owner_of[layer] for layer in layers]
        self._out_of_range.warn([layer.label for layer in layers], parts)
        form = self.options.gradient_format
        sums = self.exchange.start_sums(parts, owners, "gradients", form)()
        mine = [layer for layer in layers if self.curvature.is_mine(layer)]
        return {layer: flat.view(layer.shape) for layer, flat in zip(mine, sums, strict=True)}

    def _average(self, parameters: list[nn.Parameter]) -> None:
        """Replace gradients by their means over all ranks."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if not gradients:
            return
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        total = self.exchange.sum(flat / self.exchange.world_size, "gradients")
        means = total.split([gradient.numel() for gradient in gradients])
        for gradient, mean in zip(gradients, means, strict=True):
            gradient.copy_(mean.view(gradient.shape))

    def _rescale(
        self,
        directions: dict[Layer, Tensor],
        gradients: dict[Layer, Tensor],
        product: Tensor,
        learning_rate: float | None,
    ) -> None:
        """Rescale the directions in place, by each layer's norm or by one bound for all."""
        if self.options.rescaling == "norm":
            for layer, direction in directions.items():
                norm = direction.norm()
                ratio = gradients[layer].norm() / norm
                direction.mul_(torch.where(norm > 0, ratio, 1.0))
        if self.options.rescaling != "kl_clip":
            return
        assert learning_rate is not None
        if self.options.distribute_inverse:
            product = self.exchange.sum(product, "rescaling")
        bound = torch.sqrt(self.options.kl_clip / (learning_rate**2 * product)).clamp(max=1.0)
        # Only rounding makes the product of a positive definite matrix' directions negative.
        bound = torch.where(product > 0, bound, 1.0)
        if directions:  # a rank may own nothing
            torch._foreach_mul_(list(directions.values()), bound)

    def _distribute(self, directions: dict[Layer, Tensor], loss_scale: float) -> None:
        """Write the directions into the gradients, on all ranks unless the update is sharded."""
        if self.options.shard_update:
            for layer in self.layers:
                if not self.curvature.is_mine(layer):
                    for parameter in layer.parameters:
                        parameter.grad = None
        elif self.options.distribute_inverse:
            directions = self._gather(directions)
        # A scaler leaves out steps whose gradients, equal on all ranks, were not finite before.
        known = [] if loss_scale == 1 else self._outside + self._inside
        before = [parameter.grad for parameter in known if parameter.grad is not None]
        names = [layer.label for layer in directions]
        self._out_of_range.refuse(names, [*directions.values()], before)
        if not directions:  # of a rank that owns nothing
            return
        parts = [
            part for layer, found in directions.items() for part in layer.split_gradient(found)
        ]
        gradients = [parameter.grad for layer in directions for parameter in layer.parameters]
        torch._foreach_copy_([gradient for gradient in gradients if gradient is not None], parts)

    def _gather(self, directions: dict[Layer, Tensor]) -> dict[Layer, Tensor]:
        layers = [layer for layer in self.layers if layer.has_gradient]
        parts = [
            directions[layer]
            if layer in directions
            else torch.empty(layer.shape, device=layer.device)
            for layer in layers
        ]
        owners = [self.curvature.owner_of[layer] for layer in layers]
        self._out_of_range.warn(
            [layer.label for layer in directions], [directions[layer] for layer in directions]
        )
        everything = self.exchange.gather(parts, owners, "gradients", self.options.gradient_format)
        return dict(zip(layers, everything, strict=True))

    @torch.no_grad()
    def share_weights(self) -> None:
        """Send each layer's weights from the rank that has updated them to all ranks.

        With ``shard_update`` it must be called after the optimizer's step.
        """
        weights: dict[Tensor, Tensor] = {each: each.detach() for each in self._inside}
        for parameter, values in self._collect(weights, "weights").items():
            parameter.copy_(values)
        self.bytes_sent |= dict(self.exchange.sent)
        self.exchange.sent.clear()

    @torch.no_grad()
    def gather_owned(self, values: Mapping[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        """Return a value for each parameter of all layers, as the rank that updates it has it.

        With ``shard_update`` it completes the momentum of an optimizer, of which each rank has that
        of its own layers. Values and parameters have the same shapes; a value is zero where the
        owner has none. All ranks must call this together; each one gets everything.
        """
        gathered = {
            parameter: torch.empty_like(parameter).copy_(found)
            for parameter, found in self._collect(values, "state").items()
        }
        self.exchange.sent.clear()
        return gathered

    def _collect(self, values: Mapping[Tensor, Tensor], purpose: str) -> dict[Tensor, Tensor]:
        """Return the values of all parameters of layers, from the owners of the layers."""
        parts = [
            torch.cat(
                [values.get(p, torch.zeros_like(p)).float().flatten() for p in each.parameters]
            )
            for each in self.layers
        ]
        owners = [self.curvature.owner_of[layer] for layer in self.layers]
        gathered: dict[Tensor, Tensor] = {}
        for layer, flat in zip(
            self.layers, self.exchange.gather(parts, owners, purpose), strict=True
        ):
            sizes = [parameter.numel() for parameter in layer.parameters]
            for parameter, found in zip(layer.parameters, flat.split(sizes), strict=True):
                gathered[parameter] = found.view(parameter.shape)
        return gathered

    # What is known about it, and what is kept.

    @property
    def intervals(self) -> dict[str, Interval]:
        """The interval of every factor and its history; the same on all ranks."""
        return {statistic.name: statistic.interval for statistic in self.curvature.layer_of}

    @property
    def refreshed_share(self) -> float:
        """The number of refreshes of all factors divided by that without ``stale``."""
        possible = self.curvature.steps * len(self.curvature.layer_of)
        made = sum(interval.refreshes for interval in self.intervals.values())
        return made / possible if possible else 1.0

    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """Return everything that later steps depend on.

        All ranks must call this together. Each one gets everything, so that any rank can save the
        state and any number of ranks can load it.
        """
        state = self.curvature.state_dict()
        self.exchange.sent.clear()
        return state

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a ``state_dict``. Raises UseError if it belongs to another model."""
        self.curvature.load_state_dict(state)


def _refuse_keywords(others: Mapping[str, object]) -> None:
    """Raise UseError for options that are given as keywords, and for unknown ones."""
    known = [field.name for field in fields(Options)]
    for name, value in others.items():
        if name not in known:
            is_rate = name in ("lr", "learning_rate")
            guess = "; the optimizer has it: leave it out" if is_rate else did_you_mean(name, known)
            raise UseError(f"K-FAC: there is no option {name!r}{guess}")
        raise UseError(
            f"K-FAC: {name} is an option; fix: write KFAC(model, Options({name}={value!r}))"
        )


def _refuse_other_types(model: object, options: object) -> None:
    """Raise UseError for what is no model, and for options that are a number or a mapping."""
    if not isinstance(model, nn.Module):
        raise UseError(
            f"K-FAC: the model is a {type(model).__name__}, expected an nn.Module; fix: give the "
            "model itself, not its parameters"
        )
    if not isinstance(options, Options):
        raise UseError(
            f"K-FAC: the options are a {type(options).__name__}, expected Options; fix: write "
            "KFAC(model, Options(damping=…))"
        )
