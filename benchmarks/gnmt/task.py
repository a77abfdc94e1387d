"""gnmt in PyTorch: build, train, evaluate."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from cepheid.benchmarks.gnmt.model import GNMT, Shape, Variant, shift
from cepheid.benchmarks.gnmt.pictures import SHOWN, Alignment, draw_alignments
from cepheid.benchmarks.gnmt.recurrent import Form
from cepheid.reference.data.wmt.batch_order import LOCAL, ROUND_ROBIN, Bucketing
from cepheid.reference.data.wmt.sentence_batches import Batch, Pass, pad
from cepheid.reference.data.wmt.vocabulary import END
from cepheid.reference.optim.schedules import exponential_warmup_then_steps
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.execution import Execution
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.reference.torch.translation.beam_search import translate
from cepheid.reference.torch.translation.task import TranslationHyperparameters, TranslationTask
from cepheid.rules.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The execution settings that only gnmt has."""

    recurrent: Form
    bucketing: str
    window: int
    input_hosts: int


def read_bucketing(config: RunConfig) -> Bucketing:
    """Return how batches get sentences of like lengths. Raises UserError for a contradiction."""
    settings = config.execution.read(Settings)
    way, hosts = settings.bucketing, settings.input_hosts
    if way == LOCAL and hosts > config.global_batch_size:
        raise UserError(
            f"--set input_hosts={hosts}: with bucketing={way} each host draws a part of the "
            f"{config.global_batch_size} sentences of a global batch; fix: choose fewer hosts"
        )
    if hosts > 1 and way not in (LOCAL, ROUND_ROBIN):
        raise UserError(
            f"--set input_hosts={hosts}: with bucketing={way} there is one order for all; fix: "
            f"leave it out, or set bucketing to {LOCAL} or {ROUND_ROBIN}"
        )
    return Bucketing(way, settings.window, hosts)


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
        self.curve: list[tuple[int, float]] = []
        self.bucketing = read_bucketing(config)

    def make_network(self) -> nn.Module:
        """Return the network of the definition."""
        return GNMT(self.shape)

    def use_execution(self, settings: Execution) -> None:
        """Compute with these execution settings from now on."""
        super().use_execution(settings)
        self.use_form(settings)

    def use_form(self, settings: Execution) -> None:
        """Compute LSTMs as the settings have it."""
        self.model.use_form(settings.read(Settings).recurrent)

    def weigh_pass(self, one: Pass, batch: Batch) -> float:
        """Return the part of a pass in the mean loss of the global batch: that of its sentences."""
        return len(one.source) / self.config.global_batch_size

    def compute_loss(self, source: Tensor, target: Tensor, /) -> Tensor:
        """Return the mean loss of sentences, (n, places) both: the sum over tokens, smoothed."""
        with self.autocast():
            logits = self.parallel(source, target)
        return self.sum_losses(logits.float(), target) / len(target)

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Return BLEU and loss; remember BLEU for the pictures."""
        quality = super().evaluate()
        self.curve.append((self.samples, quality["bleu"]))
        return quality

    @torch.no_grad()
    def pictures(self) -> "Figure":
        """Return a figure with the attention of some translations of middle length."""
        self.model.eval()
        middle = len(self.sorted_rows) // 2
        rows = self.sorted_rows[middle : middle + SHOWN]
        return draw_alignments([self.align(int(row)) for row in rows], self.curve)

    def align(self, row: int) -> Alignment:
        """Translate the sentence of an evaluation row; return where the decoder looks for it."""
        source = self.to_device(pad(self.pairs, np.array([row])).source)
        target = [*translate(self.model, source, self.search)[0], END]
        memory = self.model.remember(source)
        before = shift(torch.tensor([target], device=source.device))
        _, attention, _ = self.model.decode(self.model.embedding(before.t()), memory, None)
        return Alignment(
            self.name_tokens(source[0].tolist()),
            self.name_tokens(target),
            attention[0].float().cpu().numpy(),
            self.pairs.text(target),
            self.pairs.references[row - self.pairs.train_samples],
        )

    def name_tokens(self, tokens: Sequence[int]) -> list[str]:
        """Return the text of each token."""
        return [self.pairs.text([token]) or ("END" if token == END else "·") for token in tokens]

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
