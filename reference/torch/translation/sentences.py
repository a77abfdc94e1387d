"""What benchmarks that translate share: sentences in passes of like lengths, beam search, BLEU.

Source and target are token numbers, int64 (sentences, places), with PADDING after END.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sacrebleu.metrics.bleu import BLEU
from torch import Tensor
from torch.nn.functional import cross_entropy

from cepheid.reference.data.random_streams import make_generator
from cepheid.reference.data.sentences.batches import (
    AS_DRAWN,
    PADDING,
    UNKNOWN,
    Batch,
    Batches,
    BatchOrder,
    Bucketing,
    Pairs,
    Pass,
    pad,
    sort_by_length,
)
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.execution import Execution
from cepheid.reference.run.hyperparameters import AdamHyperparameters
from cepheid.reference.run.report import Table, Value
from cepheid.reference.torch.devices.values import widen
from cepheid.reference.torch.pieces import Piece
from cepheid.reference.torch.translation.beam_search import Search, translate
from cepheid.reference.torch.workload import (
    Both,
    Evaluation,
    Inference,
    Moment,
    Network,
    OnProgress,
    Passes,
    Recipe,
    Result,
    Seat,
    Workload,
)

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


@dataclass(frozen=True, kw_only=True)
class Translation:
    """The facts of a benchmark that translates from English to German.

    ``sizes`` are those of its network, which maps source and target to logits and is a
    ``beam_search.Decoder``.
    """

    config: RunConfig
    values: TranslationHyperparameters
    sizes: Any
    search: Search
    bucketing: Bucketing = AS_DRAWN

    @property
    def facts(self) -> Mapping[str, Any]:
        """The facts of the model in the definition."""
        return self.config.definition.model


def read_search(config: RunConfig) -> Search:
    """Return the beam search of a configuration."""
    facts = config.definition.model
    coverage = facts.get("coverage_penalty", 0.0)
    return Search(facts["beam"], facts["length_penalty"], facts["extra_tokens"], coverage)


def make_adam(shape: Translation, network: Any) -> Recipe:
    """Return Adam in one kernel."""
    options = {"fused": True, **shape.values.torch_options}
    return Recipe(torch.optim.Adam, [{"params": list(network.parameters())}], options)


# Training:


class Corpus:
    """The open sentences: this rank's passes of each step, and what an evaluation compares with.

    ``weigh`` returns the part of a pass in the mean loss of the global batch.
    """

    def __init__(
        self, shape: Translation, seat: Seat, weigh: Callable[[Pass, Batch], float]
    ) -> None:
        definition = shape.config.definition
        self.shape, self.seat, self.weigh = shape, seat, weigh
        self.pass_tokens = read_pass_tokens(seat.execution)
        self.use(seat.load())
        first, count = definition.train_samples, definition.evaluation_samples
        rows = np.arange(first, first + count)
        self.sorted_rows = sort_by_length(self.pairs.lengths, rows)
        longest = int(self.pairs.source.lengths[rows].max())
        self.longest_hypothesis = longest + shape.search.extra_tokens
        self.bleu = make_bleu(self.pairs.references)

    def use(self, pairs: Pairs) -> None:
        """Train and evaluate on these pairs."""
        config, ranks = self.shape.config, self.seat.ranks
        lengths = pairs.lengths[: pairs.train_samples]
        batch, bucketing = config.global_batch_size, self.shape.bucketing
        order = BatchOrder(lengths, config.seed, batch, bucketing)
        self.pairs, self.batches = pairs, Batches(pairs, order, ranks.replica, ranks.replicas)

    def take(self, samples: int, size: int) -> list[Piece]:
        """Return this rank's share of a step in passes of at most ``size`` sentences."""
        batch = self.batches.make_batch(samples, self.pass_tokens, size)
        replicas = self.seat.ranks.replicas
        return [
            Piece(*to_tensors(each), self.weigh(each, batch) * replicas) for each in batch.passes
        ]

    def count(self, samples: int) -> tuple[int, int]:
        """Count the places for tokens, and the tokens, in this rank's passes of ``samples``."""
        places, tokens, lengths = 0, 0, self.batches.order.lengths
        for first in range(0, samples, self.shape.config.global_batch_size):
            for rows in self.batches.cut(first, self.pass_tokens, self.seat.piece):
                places += len(rows) * int(lengths[rows].max(axis=0).sum())
                tokens += int(lengths[rows].sum())
        return places, tokens


def to_tensors(block: Pass) -> Both:
    """Return source and target of a pass, (sentences, places)."""
    return torch.from_numpy(block.source), torch.from_numpy(block.target)


def seed_dropout(shape: Translation, network: Any, moment: Moment) -> None:
    """Seed by samples and rank, so that a resumed run has the same dropout.

    Ranks that share matrices drop the same units, except inside of what they share.
    """
    if shape.facts["dropout"]:
        ranks = moment.seat.ranks
        place = ranks.replica if moment.has_matrices else ranks.rank
        seeds = make_generator(shape.config.seed, "dropout", moment.samples, place)
        torch.manual_seed(int(seeds.integers(2**63)))


def sum_losses(shape: Translation, logits: Tensor, targets: Tensor) -> Tensor:
    """Return the sum of the smoothed losses of all tokens of ``targets``, (sentences, places).

    ``logits`` are (sentences, places, vocabulary).
    """
    return cross_entropy(
        logits.flatten(0, 1),
        targets.flatten(),
        ignore_index=PADDING,
        label_smoothing=shape.values.label_smoothing,
        reduction="sum",
    )


# Memory: sentences differ so much in length that it depends on tokens, not on sentences.


def read_pass_tokens(settings: Execution) -> int:
    """Return the most tokens of a pass, both languages and padding; one sentence may have more."""
    return settings.read(PassSettings).pass_tokens


def _make_smaller(shape: Translation, settings: Execution) -> Execution | None:
    """Return ``settings`` with passes of half the tokens, or None if there are none."""
    half = str(read_pass_tokens(settings) // 2)
    if half not in shape.config.definition.execution["pass_tokens"]:
        return None
    reason = f"a pass of {2 * int(half):,} tokens needs more memory than there is"
    return settings.with_setting("pass_tokens", half, reason)


def _explain(shape: Translation, settings: Execution) -> tuple[str, str]:
    fix = "choose fewer, --set pass_tokens=…"
    if not _make_smaller(shape, settings):
        fix = "there are no shorter ones; choose --set precision=bf16, or more memory"
    return f"a training pass of {read_pass_tokens(settings):,} tokens", fix


PASSES: Passes[Any] = Passes(
    # A full pass of noise; a larger share takes several passes.
    limit=lambda shape, settings, count: min(
        count, max(1, read_pass_tokens(settings) // sum(NOISE_TOKENS))
    ),
    make_smaller=_make_smaller,
    explain=_explain,
)


# The warm-up:


def make_noise(shape: Translation, count: int, generator: torch.Generator) -> Both:
    """Return random source and target, (count, tokens), of usual lengths."""
    return draw_sentences(shape, count, NOISE_TOKENS, generator)


def draw_sentences(
    shape: Translation, count: int, lengths: Sequence[int], generator: torch.Generator
) -> Both:
    """Draw source and target of so many tokens, (count, tokens); every second one ends earlier."""
    both = []
    for length in lengths:
        size = count, length
        tokens = torch.randint(UNKNOWN + 1, shape.facts["vocabulary"], size, generator=generator)
        tokens[1::2, -1] = PADDING
        both.append(tokens)
    return both[0], both[1]


def predict_noise(shape: Translation, inference: Inference, noise: Both) -> None:
    """Translate a whole batch of the longest possible sentences."""
    longest = min(LONGEST_NOISE, 2 * int(shape.config.definition.data["longest_tokens"]))
    generator = torch.Generator().manual_seed(0)
    source, target = draw_sentences(shape, inference.size, (longest, longest), generator)
    _compare_tokens(inference, source, target)
    inference(source)


# Evaluation:


def predict(shape: Translation, network: Network, source: Tensor) -> list[list[int]]:
    """Return the tokens of the translation of each sentence of ``source``, (n, places)."""
    with network.autocast():
        return translate(network.module, source, shape.search)


def evaluate(shape: Translation, inference: Inference) -> Evaluation:
    """Return BLEU and the mean cross-entropy of the tokens in nats, without smoothing.

    Each rank translates its share of the evaluation set; all ranks get all translations.
    """
    corpus, ranks, definition = inference.data, inference.ranks, shape.config.definition
    size = definition.evaluation_samples, corpus.longest_hypothesis
    tokens_of_all = torch.zeros(size, dtype=torch.int64)
    sums = inference.make_sums(2)
    for rows in inference.seat.split(corpus.sorted_rows, inference.size):
        source, target = to_tensors(pad(corpus.pairs, rows))
        sums += _compare_tokens(inference, source, target)
        for row, tokens in zip(rows, inference(source), strict=True):
            place = int(row) - definition.train_samples
            tokens_of_all[place, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
    translations = [corpus.pairs.text(row) for row in ranks.sum(tokens_of_all).tolist()]
    loss, count = ranks.sum(sums).tolist()
    score: float = corpus.bleu.corpus_score(translations, None).score
    return Evaluation({"bleu": score, "loss": loss / count})


def _compare_tokens(inference: Inference, source: Tensor, target: Tensor) -> Tensor:
    """Sum the cross-entropy of all tokens of ``target``, and count them; float64 (2,)."""
    source, target = inference.to_device(source), inference.to_device(target)
    logits = inference.network(source, target)
    losses = cross_entropy(
        logits.float().flatten(0, 1), target.flatten(), ignore_index=PADDING, reduction="none"
    )
    return torch.stack([widen(losses).sum(), widen((target != PADDING).sum())])


def report(shape: Translation, result: Result, on_progress: OnProgress) -> Sequence[Table]:
    """Return the time of training and evaluation, and the share of padding in the passes."""
    samples, corpus = result.inference.samples, result.data
    on_progress(samples, samples)
    total = sum(result.seconds.values()) or 1.0
    times: tuple[Mapping[str, Value], ...] = tuple(
        {"what": what, "seconds": round(seconds, 2), "share": round(seconds / total, 4)}
        for what, seconds in result.seconds.items()
    )
    places, tokens = corpus.count(samples)
    padding = round(1 - tokens / max(1, places), 4)
    counts = {"places": places, "tokens": tokens, "padding": padding}
    return (
        Table("Time", times, "on the first rank"),
        Table("Padding", (counts,), "of the training passes on the first rank"),
    )


def format_bleu_signature() -> str:
    """Return how BLEU is computed, in sacrebleu's notation."""
    bleu = make_bleu(["a"])
    bleu.corpus_score(["a"], None)
    return str(bleu.get_signature())


def make_bleu(references: Sequence[str]) -> BLEU:
    """Return MLPerf's BLEU: uncased, with the international tokenisation of mteval-v14."""
    return BLEU(lowercase=True, tokenize="intl", references=[list(references)])


def make_workload(**own: Any) -> Workload[Any]:
    """Return the workload of a benchmark with its own functions and those that all share."""
    shared: dict[str, Any] = {
        "make_optimizer": make_adam,
        "predict": predict,
        "make_noise": make_noise,
        "evaluate": evaluate,
        "evaluation_batch": lambda shape: 128,
        "passes": PASSES,
        "before_step": seed_dropout,
        # A compiled step has a graph of its own for a single sentence.
        "draw_other_noise": lambda shape, generator: make_noise(shape, 1, generator),
        "predict_noise": predict_noise,
        "report": report,
        "describe": lambda shape: {"bleu": format_bleu_signature()},
        "has_varying_shapes": True,
        "has_own_pace": True,
        "compiles_predict": False,
    }
    return Workload(**{**shared, **own})
