"""K-FAC in front of the optimizer of a trainer, for any benchmark that preconditions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from cepheid.reference.data.random_streams import make_generator
from cepheid.reference.optim.lars import BUFFER
from cepheid.reference.torch.preconditioner import Preconditioner
from cepheid.reference.torch.ranks.collectives import detect_lost_rank
from cepheid.second_order import KFAC, Options
from cepheid.second_order.fisher import count_noise

Products = Literal["as_model", "fp32", "bf16"]
SentBytes = Mapping[tuple[str, str], int]
"""Bytes by purpose and level (``cepheid.second_order.exchange``)."""


class KfacPreconditioner(Preconditioner):
    """K-FAC, which observes the network of a trainer and preconditions its gradients.

    ``kfac`` is there between ``attach`` and ``detach``. ``find_damping`` returns λ of the step that
    completes so many samples; without it λ stays that of the options. ``products`` is the precision
    in which gradients are multiplied by inverses. ``sent`` is what each rank sent in the last
    update, once that was measured.

    With ``shard_update`` this is Algorithm 1 of Ueno et al. 2020: gradients go to the owners of
    their layers with the factors, the owners update the weights and send them to all ranks.
    """

    rehearses = True

    def __init__(
        self,
        options: Options,
        find_damping: Callable[[int], float] | None = None,
        products: Products = "fp32",
    ) -> None:
        self.options, self.find_damping, self.products = options, find_damping, products
        self.shares_update = options.shard_update
        self.trainer: Any = None
        self.kfac: KFAC | None = None
        self.sent: Sequence[SentBytes] = ()
        self._logits: Tensor | None = None
        self._observed = self._to_observe = 0  # samples of this step on this rank

    @override
    def attach(self, trainer: Any) -> None:
        self.trainer = trainer
        self.note = "compiled where no factor is due" if self._is_compiled else ""
        of_model = "bf16" if trainer.precision is torch.bfloat16 else "fp32"
        is_half = (of_model if self.products == "as_model" else self.products) == "bf16"
        options = replace(self.options, bfloat16_products=is_half)
        self.kfac = KFAC(
            trainer.model, options, self._communicate, lambda name: trainer.phase(name)
        )

    @override
    def detach(self) -> None:
        if self.kfac is not None:
            self.kfac.remove()
        self.kfac = None

    @override
    def rehearse(self, step_on_noise: Callable[[], object]) -> None:
        assert self.kfac is not None
        step_on_noise()
        optimizer, scaler = self.trainer.optimizer, self.trainer.scaler
        scaler.unscale_(optimizer)
        self.kfac.step(optimizer.param_groups[0]["lr"], scaler.get_scale())
        self.detach()
        self.attach(self.trainer)

    @property
    def _is_compiled(self) -> bool:
        return bool(self.trainer.execution.compile == "on")

    @contextmanager
    def _communicate(self) -> Iterator[None]:
        with self.trainer.phase("communication"), detect_lost_rank():
            yield

    @override
    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return what keeps the logits of a pass, if K-FAC must see them."""
        return call if self.options.fisher == "empirical" else partial(self._keep_logits, call)

    def _keep_logits(self, call: Callable[..., Any], *inputs: Any) -> Any:
        self._logits = call(*inputs)
        return self._logits

    @override
    def prepare_step(self, samples: int) -> None:
        """Run the passes of a compiled step eagerly if K-FAC must see its layers."""
        self._observed, self._to_observe = 0, samples
        if self.kfac is None or not self._is_compiled:
            return
        is_due = self.kfac.is_due
        self.trainer.compiled_loss.enabled = not is_due
        if is_due:
            self.kfac.attach()
        else:
            self.kfac.detach()

    @override
    def accumulate(self) -> AbstractContextManager[object]:
        return nullcontext() if self.kfac is None else self.kfac.accumulate()

    @override
    def observe(self) -> None:
        """Let K-FAC run its own backward passes, with noise that is keyed by step and sample."""
        logits, self._logits = self._logits, None
        if self.kfac is None or logits is None:
            return
        trainer, options, logits = self.trainer, self.options, logits.float()
        count = count_noise(options.fisher, options.fisher_samples, logits)
        drawn = make_generator(trainer.config.seed, "fisher", trainer.samples)
        noise = drawn.random((trainer.config.global_batch_size, count), np.float32)
        first = trainer.seat.find_first(0) + self._observed
        # Labels and their smoothing add to the cross-entropy only what is linear in the logits.
        losses = partial(torch.logsumexp, dim=1) if options.fisher == "gauss_newton" else None
        self.kfac.observe(
            logits,
            losses,
            share=len(logits) / self._to_observe,
            loss_scale=trainer.scaler.get_scale(),
            noise=trainer.to_device(noise[first : first + len(logits)]),
        )
        self._observed += len(logits)

    @override
    def precondition(self, optimizer: torch.optim.Optimizer, scaler: Any) -> None:
        assert self.kfac is not None
        scaler.unscale_(optimizer)
        if self.find_damping:
            self.kfac.damping = self.find_damping(self.trainer.samples)
        self.kfac.step(optimizer.param_groups[0]["lr"], scaler.get_scale())

    @override
    def finish_update(self) -> None:
        if self.shares_update and self.kfac is not None:
            self.kfac.share_weights()

    @override
    def pause(self) -> None:
        """Leave a compiled network without hooks until a step in which a factor is due."""
        if self.kfac is not None and self._is_compiled:
            self.kfac.detach()

    @override
    def complete_optimizer(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the state with the momentum of all layers, from their owners."""
        if not self.shares_update or not self.trainer.samples:
            return state
        assert self.kfac is not None
        optimizer = self.trainer.optimizer
        own = {weight: values[BUFFER] for weight, values in optimizer.state.items()}
        gathered = self.kfac.gather_owned(own)
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        momentum = {
            place: {BUFFER: gathered[weight]}
            for place, weight in enumerate(weights)
            if weight in gathered
        }
        return {**state, "state": {**state["state"], **momentum}}

    @override
    def state(self) -> dict[str, Any]:
        return {"kfac": {} if self.kfac is None else self.kfac.state_dict()}

    @override
    def restore(self, state: Mapping[str, Any]) -> None:
        if self.kfac is not None and state.get("kfac"):
            self.kfac.load_state_dict(state["kfac"])
