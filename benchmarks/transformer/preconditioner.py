"""K-FAC with SGD for the linear layers of the Transformer, a choice of the open division.

All other parameters stay with Adam: layer norms, and the matrix that embeds both languages and
gives the logits.

A sample is a sentence: A is the mean over the tokens of all sentences of a batch, padding left out,
B the sum over the tokens of a sentence.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from cepheid.benchmarks.kfac.preconditioner import KfacPreconditioner
from cepheid.reference.data.sentences.batches import PADDING
from cepheid.reference.run.config import RunConfig
from cepheid.rules.errors import UserError
from cepheid.second_order import Options
from cepheid.second_order.layers import find_layers

WHOLE = "it observes whole layers"
OWNED = "it needs the whole gradients of a layer on the rank that owns it"
NEEDS = {  # by setting: the value that K-FAC needs, and why
    "weight_update": ("replicated", OWNED),
    "pipeline": ("1", WHOLE),
    "tensor_ranks": ("1", WHOLE),
    "compile": ("off", "it observes layers with hooks, which a compiled model does not run"),
}
MOMENTUM = 0.9


@dataclass(frozen=True, kw_only=True)
class Variants:
    """What the open division may choose: K-FAC for linear layers, and its settings."""

    opt_preconditioner: Literal["none", "kfac"]
    kfac_learning_rate: float
    kfac_damping: float
    kfac_kl_clip: float


@dataclass(frozen=True)
class Preconditioning:
    """K-FAC's options, and the highest learning rate of the parameters that it preconditions."""

    options: Options
    peak: float

    def split_parameters(self, network: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Return the parameters of layers that K-FAC preconditions, and all others."""
        layers, _ = find_layers(network, self.options)
        inside = [parameter for layer in layers for parameter in layer.parameters]
        known = set(inside)
        return inside, [each for each in network.parameters() if each not in known]


def read_preconditioning(config: RunConfig) -> Preconditioning | None:
    """Return what the configuration chooses; None without K-FAC.

    Raises UserError for settings that K-FAC excludes, and for settings of K-FAC without it.
    """
    chosen, execution = config.read_variants(Variants), config.execution
    if chosen.opt_preconditioner == "none":
        settings = [key for key in config.definition.variants if key.startswith("kfac_")]
        for key in filter(execution.own.__contains__, settings):
            raise UserError(
                f"--set {key}: it has no effect without opt_preconditioner=kfac; fix: set it too"
            )
        return None
    for setting, (value, why) in NEEDS.items():
        place = execution if setting == "compile" else execution.parallelism
        if (given := str(getattr(place, setting))) != value:
            raise UserError(
                f"--set {setting}={given}: K-FAC needs {setting}={value}, because {why}; "
                "fix: leave the setting out"
            )
    options = Options(
        damping=chosen.kfac_damping,
        average_decay=0.9,
        rescaling="kl_clip",
        kl_clip=chosen.kfac_kl_clip,
        stale=True,
        stale_tolerance=1.0,
    )
    return Preconditioning(options, chosen.kfac_learning_rate)


class KfacBesideAdam(KfacPreconditioner):
    """K-FAC and SGD beside the Adam of a trainer, which has all other parameters.

    The rate of SGD follows that of Adam, whose highest one is ``adam_peak``.
    """

    rehearses = False  # a pass is weighed by its batch of the open data

    def __init__(self, chosen: Preconditioning, adam_peak: float) -> None:
        super().__init__(chosen.options)
        self.chosen, self.adam_peak = chosen, adam_peak

    @override
    def attach(self, trainer: Any) -> None:
        trainer.model.zero_grad()
        super().attach(trainer)
        inside, _ = self.chosen.split_parameters(trainer.model)
        self.sgd = torch.optim.SGD(inside, self.chosen.peak, momentum=MOMENTUM)

    @override
    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return what also tells K-FAC that padding weighs nothing."""

        def weigh_and_call(source: Tensor, target: Tensor) -> Any:
            if self.kfac is not None:
                count = self.trainer.config.global_batch_size
                tokens = self.trainer.data.batches.count_tokens(self.trainer.samples)
                of_source = (source != PADDING) * (count / tokens[0])
                of_target = (target != PADDING) * (count / tokens[1])
                self.kfac.weigh(
                    {"encoder.*": of_source, "decoder.*.source.inputs": of_source, "*": of_target}
                )
            return call(source, target)

        return weigh_and_call

    @override
    def precondition(self, optimizer: torch.optim.Optimizer, scaler: Any) -> None:
        """Update the linear layers."""
        assert self.kfac is not None
        rate = self.chosen.peak * optimizer.param_groups[0]["lr"] / self.adam_peak
        self.kfac.step(rate)
        self.sgd.param_groups[0]["lr"] = rate
        self.sgd.step()
        self.sgd.zero_grad()

    @override
    def state(self) -> dict[str, Any]:
        return {**super().state(), "sgd": self.sgd.state_dict()}

    @override
    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.sgd.load_state_dict(state["sgd"])
