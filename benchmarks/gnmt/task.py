"""gnmt in PyTorch: build, train, evaluate."""

from dataclasses import dataclass

from torch import Tensor, nn

from benchmarks.gnmt.model import GNMT, Shape, Variant
from reference.data.wmt.sentence_batches import Batch, Pass
from reference.optim.schedules import exponential_warmup_then_steps
from reference.run.config import Execution, RunConfig
from reference.torch.distributed import TorchRanks
from reference.torch.translation.task import TranslationHyperparameters, TranslationTask


@dataclass(frozen=True, kw_only=True)
class Hyperparameters(TranslationHyperparameters):
    """The hyperparameters of gnmt."""

    opt_learning_rate_warmup_samples: int
    opt_learning_rate_remain_samples: int
    opt_learning_rate_decay_interval_samples: int
    opt_learning_rate_decay_factor: float
    opt_learning_rate_decay_steps: int
    opt_gradient_clip_norm: float
    model_variant: Variant


def create(config: RunConfig, ranks: TorchRanks) -> "Translation":
    """Return the task for the timed loop."""
    return Translation(config, ranks)


class Translation(TranslationTask):
    """Translation from English to German by a recurrent network."""

    hyperparameter_type = Hyperparameters
    hyperparameters: Hyperparameters
    model: GNMT

    def __init__(self, config: RunConfig, ranks: TorchRanks) -> None:
        super().__init__(config, ranks)
        sizes = ("vocabulary", "width", "layers", "dropout")
        self.shape = Shape(
            **{key: self.definition.model[key] for key in sizes},
            variant=self.hyperparameters.model_variant,
        )

    def make_network(self) -> nn.Module:
        """Return the network of the definition."""
        return GNMT(self.shape)

    def use_execution(self, settings: Execution) -> None:
        """Compute with these execution settings from now on."""
        super().use_execution(settings)
        self.model.use_form(settings.own["recurrent"])

    def weigh_pass(self, one: Pass, batch: Batch) -> float:
        """Return the part of a pass in the mean loss of the global batch: that of its sentences."""
        return len(one.source) / self.config.global_batch_size

    def compute_loss(self, source: Tensor, target: Tensor, /) -> Tensor:
        """Return the mean loss of sentences, (n, places) both: the sum over tokens, smoothed."""
        with self.autocast():
            logits = self.parallel(source, target)
        return self.sum_losses(logits.float(), target) / len(target)

    def prepare_update(self) -> None:
        """Clip the gradients and set the learning rate."""
        super().prepare_update()
        self.clip_gradients(self.hyperparameters.opt_gradient_clip_norm)

    def learning_rate(self) -> float:
        """Return the learning rate of the step that completes ``samples``."""
        values = self.hyperparameters
        return exponential_warmup_then_steps(
            self.samples,
            peak=values.opt_base_learning_rate,
            warmup_samples=values.opt_learning_rate_warmup_samples,
            remain_samples=values.opt_learning_rate_remain_samples,
            interval_samples=values.opt_learning_rate_decay_interval_samples,
            factor=values.opt_learning_rate_decay_factor,
            decays=values.opt_learning_rate_decay_steps,
        )
