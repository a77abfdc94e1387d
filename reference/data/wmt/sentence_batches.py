"""Batches of sentence pairs: a global batch is a fixed number of sentences.

They are drawn at random, or grouped by length as ``batch_order`` describes. The sentences of a
batch are sorted by length, and each rank takes its share in round robin, so that all ranks have
about the same work without communication. A rank cuts its share into *passes* of similar lengths,
each with a limited number of tokens, padding included. This keeps padding small and memory bounded.
Gradients add up over the passes of a step.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cepheid.reference.data.wmt.batch_order import BatchOrder
from cepheid.reference.data.wmt.pairs import Pairs, Tokens
from cepheid.reference.data.wmt.vocabulary import PADDING


@dataclass(frozen=True)
class Pass:
    """Source and target, int64 (sentences, longest): PADDING follows the END of a sentence."""

    source: np.ndarray
    target: np.ndarray

    @property
    def places(self) -> int:
        """The tokens of both languages and their padding."""
        return self.source.size + self.target.size

    @property
    def target_tokens(self) -> int:
        """The tokens of the target, without padding."""
        return int(np.count_nonzero(self.target != PADDING))

    @property
    def tokens(self) -> int:
        """The tokens of both languages, without padding."""
        return int(np.count_nonzero(self.source != PADDING)) + self.target_tokens


@dataclass(frozen=True)
class Batch:
    """A rank's share of a global batch.

    ``source_tokens`` and ``target_tokens`` are those of the whole batch.
    """

    passes: tuple[Pass, ...]
    source_tokens: int
    target_tokens: int


@dataclass(frozen=True)
class Batches:
    """The training batches of one rank: a function of order, samples trained and its share."""

    pairs: Pairs
    order: BatchOrder
    rank: int
    world_size: int

    def make_batch(
        self, samples: int, pass_tokens: int, pass_sentences: int = sys.maxsize
    ) -> Batch:
        """Make the batch that follows after that many samples.

        A pass has at most ``pass_tokens`` tokens and ``pass_sentences`` sentences.
        """
        mine = self.order.share(samples, self.rank, self.world_size)
        parts = self._cut(mine, pass_tokens, pass_sentences)
        passes = tuple(pad(self.pairs, part) for part in parts)
        source, target = map(int, self.order.lengths[self.order.take(samples)].sum(axis=0))
        return Batch(passes, source, target)

    def _cut(self, rows: np.ndarray, pass_tokens: int, pass_sentences: int) -> Iterator[np.ndarray]:
        """Yield consecutive parts of ``rows``, each of at most ``pass_tokens`` tokens.

        Every part has at least one sentence, and at most ``pass_sentences``.
        """
        source, target = self.order.lengths[rows].T
        first = 0
        while first < len(rows):
            longest = np.maximum.accumulate(source[first:]) + np.maximum.accumulate(target[first:])
            places = longest * np.arange(1, len(longest) + 1)
            count = max(1, int(np.searchsorted(places, pass_tokens, side="right")))
            count = min(count, pass_sentences)
            yield rows[first : first + count]
            first += count


def sort_by_length(pairs: Pairs, rows: np.ndarray) -> np.ndarray:
    """Sort ``rows``, int64 (rows,), from the shortest to the longest pair."""
    source, target = pairs.source.lengths[rows], pairs.target.lengths[rows]
    return rows[np.lexsort((rows, source, target))]


def pad(pairs: Pairs, rows: np.ndarray) -> Pass:
    """Return the pairs ``rows``, int64 (rows,), in one padded block."""
    return Pass(_stack_padded(pairs.source, rows), _stack_padded(pairs.target, rows))


def _stack_padded(tokens: Tokens, rows: np.ndarray) -> np.ndarray:
    sentences = [tokens.row(int(row)) for row in rows]
    block = np.full((len(rows), max(map(len, sentences))), PADDING, np.int64)
    for place, sentence in zip(block, sentences, strict=True):
        place[: len(sentence)] = sentence
    return block
