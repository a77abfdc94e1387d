"""transformer in PyTorch: build, train, evaluate."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from sacrebleu.metrics.bleu import BLEU
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.transformer.beam import Search, translated
from benchmarks.transformer.model import Shape, Transformer
from reference.data import store, wmt
from reference.data.wmt.pairs import PADDING, UNKNOWN
from reference.data.wmt.sentence_batches import Batch, Batches, Pass, by_length, padded
from reference.optim.schedules import inverse_square_root
from reference.run.config import Execution, RunConfig
from reference.run.report import Table, Value
from reference.run.seeding import generator
from reference.torch import precision
from reference.torch.distributed import TorchRanks, detect_lost_rank
from reference.torch.parallel_task import ParallelTask
from rules.definition import Block
from rules.errors import UserError

EVALUATION_BATCH_PER_RANK = 128
# Of the sentences that the warm-up makes up: in English and in German, to train. Two lengths and a
# number of sentences that differ compile to a graph for any sizes, equal ones only for equal ones.
NOISE_TOKENS = 23, 25
LONGEST_NOISE = 100  # to evaluate: newstest2014's longest has 97 tokens of MLPerf's vocabulary


def create(config: RunConfig, ranks: TorchRanks) -> "Translation":
    """The task that the timed loop drives."""
    return Translation(config, ranks)


class Translation(ParallelTask):
    """German for English sentences."""

    model: Transformer
    shapes_vary = True

    def __init__(self, config: RunConfig, ranks: TorchRanks) -> None:
        super().__init__(config, ranks)
        self.folder = wmt.folder(self.definition.data, config.data_root)
        self.data_digest = store.read_manifest(self.folder).digest
        self.evaluation_batch = EVALUATION_BATCH_PER_RANK
        self.pass_tokens = int(config.execution.own["pass_tokens"])
        model = self.definition.model
        sizes = ("vocabulary", "width", "heads", "feed_forward", "layers", "norm", "dropout")
        self.shape = Shape(**{key: model[key] for key in sizes})
        self.search = Search(model["beam"], model["length_penalty"], model["extra_tokens"])
        self.seconds = {"training": 0.0, "evaluation": 0.0}
        self.places = self.tokens = 0

    def drop_caches(self) -> None:
        """Drop the sentences from the file caches."""
        store.drop_caches(self.folder)

    def make_network(self) -> nn.Module:
        """The Transformer of the definition."""
        return Transformer(self.shape)

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Adam in one kernel."""
        values = self.config.hyperparameters
        return self.make_parallel_optimizer(
            torch.optim.Adam,
            [{"params": list(self.model.parameters())}],
            lr=float(values["opt_base_learning_rate"]),
            betas=(float(values["opt_adam_beta_1"]), float(values["opt_adam_beta_2"])),
            eps=float(values["opt_adam_epsilon"]),
            fused=True,
        )

    def implementation(self) -> Mapping[str, Any]:
        """What a reader asks for beside a time: also how BLEU is computed."""
        return {**super().implementation(), "bleu": signature()}

    def open_data(self) -> None:
        """Map the sentences."""
        self.pairs = wmt.load(self.folder)
        self.batches = self.make_batches()
        train, count = self.definition.train_samples, self.definition.evaluation_samples
        rows = by_length(self.pairs, np.arange(train, train + count))
        self.evaluation_rows = rows[self.ranks.rank :: self.ranks.world_size]
        longest = int(self.pairs.source.lengths[train:].max())
        self.longest_hypothesis = longest + self.search.extra_tokens
        self.bleu = _bleu(self.pairs.references)

    def warm_up(self) -> None:
        """As ever. Where the step is compiled, also for passes of a single sentence, which get a
        graph of their own; that is not for the timed run to do."""
        super().warm_up()
        if self.execution.compile == "on":
            self.model.train()
            self._loss(*self._noise(1, *NOISE_TOKENS)).backward()
            self.optimizer.zero_grad()

    def predict_noise(self) -> None:
        """A whole batch of the longest sentences that may come."""
        source, target = self._noise(self.evaluation_batch, LONGEST_NOISE, LONGEST_NOISE)
        self._sums_of_losses(source, target)
        self._predict(source)

    def make_batches(self) -> Batches:
        """This rank's shares of the global batches."""
        return Batches(
            self.pairs,
            self.config.seed,
            self.config.global_batch_size,
            self.pass_tokens,
            self.ranks.rank,
            self.ranks.world_size,
        )

    def train(self, block: Block, on_samples: Callable[[int], None]) -> float:
        """As ever; the time is for the report."""
        started = time.monotonic()
        loss = super().train(block, on_samples)
        self.seconds["training"] += time.monotonic() - started
        return loss

    def loss_and_gradients(self) -> Tensor:
        """Forward and backward, pass by pass; each token of the global batch weighs the same,
        whatever rank and pass it is in."""
        with self.phase("data"):
            batch = self.next_share()
        self._seed_dropout()
        losses = []
        for one in batch.passes:
            share = one.target_tokens * self.ranks.world_size / batch.target_tokens
            with self.sync_gradients() if one is batch.passes[-1] else self.no_sync():
                with self.phase("forward"):
                    loss: Tensor = self._loss(*self._on_device(one)) * share
                with self.phase("backward"), detect_lost_rank():
                    loss.backward()
            losses.append(loss.detach())
        return torch.stack(losses).sum()

    def next_share(self) -> Batch:
        """This rank's share of the global batch that follows ``samples``."""
        batch = self.batches.after(self.samples)
        self.places += sum(one.places for one in batch.passes)
        self.tokens += sum(one.tokens for one in batch.passes)
        return batch

    def apply_gradients(self) -> None:
        """Set the rate for the samples trained after this step, and step."""
        self.samples += self.config.global_batch_size
        values = self.config.hyperparameters
        for group in self.optimizer.param_groups:
            group["lr"] = inverse_square_root(
                self.samples,
                peak=float(values["opt_base_learning_rate"]),
                warmup_samples=int(values["opt_learning_rate_warmup_samples"]),
            )
        with detect_lost_rank():
            self.optimizer.step()
        self.optimizer.zero_grad()

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """BLEU of the whole evaluation set, and the mean cross-entropy of its tokens in nats
        without smoothing. Each rank translates its share, and all learn all translations."""
        started = time.monotonic()
        self.model.eval()
        shape = (self.definition.evaluation_samples, self.longest_hypothesis)
        found = torch.zeros(shape, dtype=torch.int64, device=self.ranks.device)
        sums = torch.zeros(2, dtype=torch.float64, device=self.ranks.device)
        for first in range(0, len(self.evaluation_rows), self.evaluation_batch):
            rows = self.evaluation_rows[first : first + self.evaluation_batch]
            source, target = self._on_device(padded(self.pairs, rows))
            sums += self._sums_of_losses(source, target)
            for row, tokens in zip(rows, self._predict(source), strict=True):
                place = int(row) - self.definition.train_samples
                found[place, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
        translations = [self.pairs.text(row) for row in self.ranks.sum(found).tolist()]
        loss, count = self.ranks.sum(sums).tolist()
        score: float = self.bleu.corpus_score(translations, None).score
        self.seconds["evaluation"] += time.monotonic() - started
        return {"bleu": score, "loss": loss / count}

    def report(self, on_progress: Callable[[int, int], None]) -> Sequence[Table]:
        """Where the time of the run went, and how much of what was computed was padding."""
        total = sum(self.seconds.values()) or 1.0
        on_progress(self.samples, self.samples)  # all were counted while they were trained
        times: tuple[Mapping[str, Value], ...] = tuple(
            {"what": what, "seconds": round(seconds, 2), "share": round(seconds / total, 4)}
            for what, seconds in self.seconds.items()
        )
        padding = 1 - self.tokens / max(1, self.places)
        places = {"places": self.places, "tokens": self.tokens, "padding": round(padding, 4)}
        return (
            Table("Time", times, "on the first rank"),
            Table("Padding", (places,), "of the training passes on the first rank"),
        )

    def _mean_loss(self, source: Tensor, target: Tensor, /) -> Tensor:
        with precision.autocast(self.precision, self.ranks.device):
            logits = self.parallel(source, target)
        smoothing = float(self.config.hyperparameters["label_smoothing"])
        return cross_entropy(
            logits.float().flatten(0, 1),
            target.flatten(),
            ignore_index=PADDING,
            label_smoothing=smoothing,
        )

    def _sums_of_losses(self, source: Tensor, target: Tensor) -> Tensor:
        """Of all tokens: cross-entropy, how many; float64 (2,)."""
        with precision.autocast(self.precision, self.ranks.device):
            logits = self.model(source, target)
        losses = cross_entropy(
            logits.float().flatten(0, 1), target.flatten(), ignore_index=PADDING, reduction="none"
        )
        return torch.stack([losses.double().sum(), (target != PADDING).sum().double()])

    def _outputs(self, source: Tensor, /) -> list[list[int]]:
        with precision.autocast(self.precision, self.ranks.device):
            return translated(self.model, source, self.search)

    def _compute_as(self, how: Execution) -> None:
        super()._compute_as(how)
        self._predict.enabled = False  # the search has another shape in each of its steps

    def _step_on_noise(self, how: Execution) -> str:
        try:
            return super()._step_on_noise(how)
        except RuntimeError as error:
            on_gpu = isinstance(error, torch.OutOfMemoryError)
            if not on_gpu and "can't allocate memory" not in str(error):
                raise
            raise UserError(
                f"a training pass of {self.pass_tokens:,} tokens needs more memory than "
                f"{'the GPU' if on_gpu else 'this machine'} has: choose fewer, --set pass_tokens=…"
            ) from error

    def _synthetic(self, count: int) -> tuple[Tensor, Tensor]:
        # A full pass at most: of a larger share no more is computed at once.
        return self._noise(min(count, max(1, self.pass_tokens // sum(NOISE_TOKENS))), *NOISE_TOKENS)

    def _noise(self, sentences: int, source: int, target: int) -> tuple[Tensor, Tensor]:
        """So many sentences of so many tokens; every second one ends earlier, as most do."""
        # A generator of its own: warming up must not move the global one.
        drawn = torch.Generator().manual_seed(0)
        both = []
        for length in (source, target):
            shape = sentences, length
            tokens = torch.randint(UNKNOWN + 1, self.shape.vocabulary, shape, generator=drawn)
            tokens[1::2, -1] = PADDING
            both.append(tokens.to(self.ranks.device))
        return both[0], both[1]

    def _on_device(self, one: Pass) -> tuple[Tensor, Tensor]:
        source, target = torch.from_numpy(one.source), torch.from_numpy(one.target)
        return source.to(self.ranks.device), target.to(self.ranks.device)

    def _seed_dropout(self) -> None:
        """A run that goes on from a checkpoint draws what it would have drawn; ranks differ."""
        if self.shape.dropout:
            seeds = generator(self.config.seed, "dropout", self.samples, self.ranks.rank)
            torch.manual_seed(int(seeds.integers(2**63)))


def signature() -> str:
    """How BLEU is computed, as sacrebleu writes it."""
    bleu = _bleu(["a"])
    bleu.corpus_score(["a"], None)
    return str(bleu.get_signature())


def _bleu(references: Sequence[str]) -> BLEU:
    """Uncased, tokenised as mteval-v14 does it internationally: MLPerf's."""
    return BLEU(lowercase=True, tokenize="intl", references=[list(references)])
