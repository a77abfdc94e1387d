"""The base of tasks that translate: sentences in passes of like lengths, beam search, BLEU."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, cast

import torch
from sacrebleu.metrics.bleu import BLEU
from torch import Tensor
from torch.nn.functional import cross_entropy

from cepheid.reference.data import wmt
from cepheid.reference.data.random_streams import make_generator
from cepheid.reference.data.wmt.batch_order import AS_DRAWN
from cepheid.reference.data.wmt.sentence_batches import Batch, Batches, Pass, pad, sort_by_length
from cepheid.reference.data.wmt.vocabulary import PADDING, UNKNOWN
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.execution import Execution
from cepheid.reference.run.hyperparameters import AdamHyperparameters
from cepheid.reference.run.report import Table, Value
from cepheid.reference.torch.execution import explain_out_of_memory
from cepheid.reference.torch.parallel.task import ParallelTask
from cepheid.reference.torch.pieces import Piece
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.reference.torch.translation.beam_search import Decoder, Search, translate
from cepheid.rules.definition import Block

# Lengths of the warm-up's English and German sentences. Two different lengths and a different
# number of sentences compile to a graph for any sizes, equal ones to a graph for equal sizes only.
NOISE_TOKENS = 23, 25
# Of evaluation, unless twice the longest training sentence is less: newstest2014's longest has 97
# tokens of MLPerf's vocabulary for the Transformer.
LONGEST_NOISE = 100


@dataclass(frozen=True, kw_only=True)
class TranslationHyperparameters(AdamHyperparameters):
    """The hyperparameters that all benchmarks that translate have."""

    label_smoothing: float


@dataclass(frozen=True, kw_only=True)
class PassSettings:
    """The execution setting that all benchmarks that translate have."""

    pass_tokens: int


class TranslationTask(ParallelTask):
    """A ``ParallelTask`` that translates from English to German with Adam and beam search.

    Its network maps source and target tokens to logits and is a ``beam_search.Decoder``. The
    definition has the execution setting ``pass_tokens``.
    """

    hyperparameter_type: type[TranslationHyperparameters] = TranslationHyperparameters
    hyperparameters: TranslationHyperparameters
    bucketing = AS_DRAWN
    evaluation_batch = 128
    has_varying_shapes = True

    def __init__(self, config: RunConfig, ranks: TorchRanks) -> None:
        super().__init__(config, ranks)
        model = self.definition.model
        beam, length_penalty = model["beam"], model["length_penalty"]
        coverage = model.get("coverage_penalty", 0.0)
        self.search = Search(beam, length_penalty, model["extra_tokens"], coverage)
        self.seconds = {"training": 0.0, "evaluation": 0.0}
        self.places = self.tokens = 0

    # A benchmark may override:

    def weigh_pass(self, one: Pass, batch: Batch) -> float:
        """Return the part of a pass in the mean loss of the global batch: here that of its tokens.

        ``compute_loss`` is then the mean over tokens.
        """
        return one.target_tokens / batch.target_tokens

    # For all:

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return Adam in one kernel."""
        groups = [{"params": list(self.model.parameters())}]
        options = self.hyperparameters.torch_options
        return self.make_parallel_optimizer(torch.optim.Adam, groups, fused=True, **options)

    def implementation(self) -> Mapping[str, Any]:
        """Return framework, device, ranks and execution, and how BLEU is computed."""
        return {**super().implementation(), "bleu": format_bleu_signature()}

    def open_data(self) -> None:
        """Map the sentences."""
        self.pairs = wmt.load(self.folder)
        self.batches = self.make_batches()
        self.sorted_rows = sort_by_length(self.pairs, self.evaluation_rows)
        longest = int(self.pairs.source.lengths[self.evaluation_rows].max())
        self.longest_hypothesis = longest + self.search.extra_tokens
        self.bleu = _make_bleu(self.pairs.references)

    def warm_up(self) -> None:
        """Warm up as other tasks; also compile passes of a single sentence, where needed.

        A compiled step has a graph of its own for them, which the timed run must not compile.
        """
        super().warm_up()
        if self.execution.compile == "on":
            self.model.train()
            self.compiled_loss(*self.draw_sentences(1, *NOISE_TOKENS)).backward()
            self.optimizer.zero_grad()

    def predict_noise(self) -> None:
        """Translate a whole batch of the longest possible sentences."""
        longest = min(LONGEST_NOISE, 2 * int(self.definition.data["longest_tokens"]))
        source, target = self.draw_sentences(self.evaluation_batch, longest, longest)
        self._sum_losses(source, target)
        self.compiled_predict(source)

    def make_batches(self) -> Batches:
        """Return this rank's shares of the global batches."""
        return Batches(
            self.pairs,
            self.config.seed,
            self.config.global_batch_size,
            self.pass_tokens,
            self.ranks.replica,
            self.ranks.replicas,
            self.piece_size,
            self.bucketing,
        )

    def train(self, block: Block, on_samples: Callable[[int], None]) -> float:
        """Train to ``block.samples``; return the mean loss. The report contains the time."""
        started = time.monotonic()
        loss = super().train(block, on_samples)
        self.seconds["training"] += time.monotonic() - started
        return loss

    @property
    def pass_tokens(self) -> int:
        """The most tokens of a pass, both languages and padding; one sentence may have more."""
        return self.execution.read(PassSettings).pass_tokens

    def loss_and_gradients(self) -> Tensor:
        """Run forward and backward, pass by pass.

        Return the detached loss, a scalar. Each token of the global batch has the same weight,
        whatever its rank and pass.
        """
        self._seed_dropout()
        return super().loss_and_gradients()

    def next_pieces(self) -> Sequence[Piece]:
        """Return this rank's share of the global batch that follows ``samples``, in passes."""
        batch = self.next_share()
        return [
            Piece(*self.move_pass(one), self.weigh_pass(one, batch) * self.ranks.replicas)
            for one in batch.passes
        ]

    def finish_phase(self) -> None:
        """Wait for this rank's device alone: ranks have different numbers of passes in a step."""
        if self.ranks.device.type == "cuda":
            torch.cuda.synchronize(self.ranks.device)

    def next_share(self) -> Batch:
        """Return this rank's share of the global batch that follows ``samples``."""
        batch = self.batches.make_batch(self.samples)
        self.places += sum(one.places for one in batch.passes)
        self.tokens += sum(one.tokens for one in batch.passes)
        return batch

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Return BLEU and the mean cross-entropy of the tokens in nats, without smoothing.

        Each rank translates its share of the evaluation set; all ranks get all translations.
        """
        started = time.monotonic()
        self.model.eval()
        shape = (self.definition.evaluation_samples, self.longest_hypothesis)
        tokens_of_all = torch.zeros(shape, dtype=torch.int64, device=self.ranks.device)
        sums = torch.zeros(2, dtype=torch.float64, device=self.ranks.device)
        for rows in self.split_for_evaluation(self.sorted_rows):
            source, target = self.move_pass(pad(self.pairs, rows))
            sums += self._sum_losses(source, target)
            for row, tokens in zip(rows, self.compiled_predict(source), strict=True):
                place = int(row) - self.definition.train_samples
                tokens_of_all[place, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
        translations = [self.pairs.text(row) for row in self.ranks.sum(tokens_of_all).tolist()]
        loss, count = self.ranks.sum(sums).tolist()
        score: float = self.bleu.corpus_score(translations, None).score
        self.seconds["evaluation"] += time.monotonic() - started
        return {"bleu": score, "loss": loss / count}

    def report(self, on_progress: Callable[[int, int], None]) -> Sequence[Table]:
        """Return the time of training and evaluation, and the share of padding in the passes."""
        total = sum(self.seconds.values()) or 1.0
        on_progress(self.samples, self.samples)  # the numbers were counted during training
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

    def sum_losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of the smoothed losses of all tokens of ``targets``, (sentences, places).

        ``logits`` are (sentences, places, vocabulary).
        """
        return cross_entropy(
            logits.flatten(0, 1),
            targets.flatten(),
            ignore_index=PADDING,
            label_smoothing=self.hyperparameters.label_smoothing,
            reduction="sum",
        )

    def _sum_losses(self, source: Tensor, target: Tensor) -> Tensor:
        """Sum the cross-entropy of all tokens, and count them; float64 (2,)."""
        with self.autocast():
            logits = self.model(source, target)
        losses = cross_entropy(
            logits.float().flatten(0, 1), target.flatten(), ignore_index=PADDING, reduction="none"
        )
        return torch.stack([losses.double().sum(), (target != PADDING).sum().double()])

    def predict(self, source: Tensor, /) -> list[list[int]]:
        """Return the tokens of the translation of each sentence of ``source``, (n, places)."""
        with self.autocast():
            return translate(cast(Decoder, self.model), source, self.search)

    def use_execution(self, settings: Execution) -> None:
        """Compute with these execution settings from now on."""
        super().use_execution(settings)
        self.compiled_predict.enabled = False  # each step of the search has another shape

    def refuse_uneven_pieces(self) -> None:
        """Return at once: passes differ anyway, and ``micro_batch`` is their largest size."""

    def make_smaller(self, settings: Execution) -> Execution | None:
        """Return ``settings`` with passes of half the tokens, or None if there are none.

        Sentences differ so much in length that memory depends on tokens, not on sentences.
        """
        half = str(settings.read(PassSettings).pass_tokens // 2)
        if half not in self.definition.execution["pass_tokens"]:
            return None
        reason = f"a pass of {2 * int(half):,} tokens needs more memory than there is"
        return settings.with_setting("pass_tokens", half, reason)

    def explain_large_step(self, settings: Execution) -> AbstractContextManager[None]:
        """Return a context that raises UserError where a pass does not fit into memory."""
        what = f"a training pass of {settings.read(PassSettings).pass_tokens:,} tokens"
        fix = "choose fewer, --set pass_tokens=…"
        if not self.make_smaller(settings):
            fix = "there are no shorter ones; choose --set precision=bf16, or more memory"
        return explain_out_of_memory(what, fix)

    def make_noise_batch(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return source and target tokens, int64 (sentences, places), of a full pass at most."""
        # A larger share is computed in several passes.
        sentences = min(count, max(1, self.pass_tokens // sum(NOISE_TOKENS)))
        return self.draw_sentences(sentences, *NOISE_TOKENS, generator)

    def draw_sentences(
        self,
        sentences: int,
        source: int,
        target: int,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Draw sentences of ``source`` and ``target`` tokens; every second one ends earlier.

        torch's global generator stays as it is. Both are int64 (sentences, tokens).
        """
        generator = generator or torch.Generator().manual_seed(0)
        both = []
        for length in (source, target):
            shape = sentences, length
            tokens = torch.randint(
                UNKNOWN + 1, self.definition.model["vocabulary"], shape, generator=generator
            )
            tokens[1::2, -1] = PADDING
            both.append(tokens.to(self.ranks.device))
        return both[0], both[1]

    def move_pass(self, one: Pass) -> tuple[Tensor, Tensor]:
        """Return source and target tokens of a pass, (sentences, places), on this rank's device."""
        return self.to_device(one.source), self.to_device(one.target)

    def _seed_dropout(self) -> None:
        """Seed by samples and rank, so that a resumed run has the same dropout.

        Ranks that share matrices drop the same units, except inside of what they share.
        """
        if self.definition.model["dropout"]:
            is_shared = self.sharing.tensor_ranks > 1
            place = (self.samples, self.ranks.replica if is_shared else self.ranks.rank)
            seeds = make_generator(self.config.seed, "dropout", *place)
            torch.manual_seed(int(seeds.integers(2**63)))


def format_bleu_signature() -> str:
    """Return how BLEU is computed, in sacrebleu's notation."""
    bleu = _make_bleu(["a"])
    bleu.corpus_score(["a"], None)
    return str(bleu.get_signature())


def _make_bleu(references: Sequence[str]) -> BLEU:
    """Return MLPerf's BLEU: uncased, with the international tokenisation of mteval-v14."""
    return BLEU(lowercase=True, tokenize="intl", references=[list(references)])
