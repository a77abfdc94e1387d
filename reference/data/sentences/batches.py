"""Batches of sentence pairs: a global batch is a fixed number of sentences.

The sentences of a batch are sorted by length, and each rank takes its share in round robin, so that
all ranks have about the same work without communication. A rank cuts its share into *passes* of
similar lengths, each with a limited number of tokens, padding included. This keeps padding small
and memory bounded. Gradients add up over the passes of a step.

A recurrent network takes as many steps as the longest sentence of a batch has tokens, and with
several ranks every rank waits for the longest of all. Source: Kumar et al. 2019 (arXiv:1909.09756),
section 3. Each ``Bucketing`` is an order of every epoch's samples, a function of the seed and the
number of samples trained. It is the same for any number of ranks.

``random``
    A global batch is drawn at random.
``local``
    Each of ``hosts`` draws its part of every global batch itself. It draws ``window`` parts at
    once, sorts them by length and cuts them again, so its parts have like lengths. The hosts do not
    know of each other: at the same step one has short sentences and another long ones.
``global``
    One window for all: it has ``window`` global batches, and all ranks of a step have like lengths.
    The reference of MLPerf 0.6 GNMT does so, with 80 batches.
``round_robin``
    Like ``global``, but the batches come from ``hosts`` in turn, each with windows of its own.
    Where one host makes the batches of all ranks, it limits them; so the work is spread.

Here no rank makes batches for another. Each computes the order from the lengths, which are in
memory, and reads the tokens of its own share, whatever ``hosts`` is. So hosts are a part of the
order, not of the machine.

Within a window the batches come in random order. A batch that begins in one epoch and ends in the
next one is not sorted. So every epoch has every sample once.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np

from cepheid.reference.data.order import SampleStream
from cepheid.reference.data.random_streams import make_generator
from cepheid.reference.data.store import Manifest

PADDING, END, UNKNOWN = 0, 1, 2
TOKEN = np.dtype(np.uint16)


class Subwords(Protocol):
    """A vocabulary: what sentencepiece's processors have, as far as it is used."""

    def __len__(self) -> int:
        """Return the number of subwords, with PADDING, END and UNKNOWN."""

    def encode(self, text: str, /) -> list[int]:
        """Return the numbers of the subwords of a sentence."""

    def decode(self, numbers: Sequence[int], /) -> str:
        """Return the text of numbers of subwords."""


@dataclass(frozen=True)
class Tokens:
    """Sentences one after the other: row i is ``values[ends[i - 1]:ends[i]]``, uint16."""

    values: np.ndarray
    ends: np.ndarray

    def row(self, number: int) -> np.ndarray:
        """Return the tokens of a sentence, END last; uint16 (tokens,)."""
        return self.values[self.ends[number - 1] if number else 0 : self.ends[number]]

    @cached_property
    def lengths(self) -> np.ndarray:
        """The number of tokens of every row, END included; int64 (rows,)."""
        return np.diff(self.ends, prepend=0)


@dataclass(frozen=True)
class Pairs:
    """A prepared dataset. ``references`` is the German text of the evaluation set."""

    train_samples: int
    evaluation_samples: int
    source: Tokens
    target: Tokens
    references: tuple[str, ...]
    subwords: Subwords
    manifest: Manifest

    @cached_property
    def lengths(self) -> np.ndarray:
        """The numbers of tokens of source and target of every row, END included; (rows, 2)."""
        return np.stack([self.source.lengths, self.target.lengths], axis=1)

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of token numbers up to END."""
        numbers = list(tokens)
        if END in numbers:
            numbers = numbers[: numbers.index(END)]
        known = [number for number in numbers if UNKNOWN < number < len(self.subwords)]
        return self.subwords.decode(known)


RANDOM, LOCAL, GLOBAL, ROUND_ROBIN = "random", "local", "global", "round_robin"
INPUTS = (RANDOM, LOCAL, GLOBAL, ROUND_ROBIN)


@dataclass(frozen=True)
class Bucketing:
    """How batches get like lengths: ``input`` is one of INPUTS, ``window`` a number of batches.

    Raises ValueError for values that make no sense.
    """

    input: str = RANDOM
    window: int = 1
    hosts: int = 1

    def __post_init__(self) -> None:
        if self.input not in INPUTS or min(self.window, self.hosts) < 1:
            raise ValueError(f"{self}: expected input of {INPUTS}, window and hosts of 1 or more")
        if self.hosts > 1 and self.input in (RANDOM, GLOBAL):
            raise ValueError(f"{self}: one order for all has one host")


AS_DRAWN = Bucketing()


@dataclass(frozen=True)
class Padding:
    """What batches cost, in places for tokens of both languages; ``steps`` are the longest ones.

    ``places`` counts each rank's share padded to its own longest sentences, ``waited`` to the
    longest ones of all ranks.
    """

    tokens: int
    places: int
    waited: int

    @property
    def share(self) -> float:
        """The share of padding in what the ranks compute."""
        return 1 - self.tokens / self.places

    @property
    def share_with_waiting(self) -> float:
        """The share of padding if every rank takes as long as the one with the longest batch."""
        return 1 - self.tokens / self.waited


class BatchOrder:
    """The order of the training samples of one seed.

    ``lengths`` are tokens, integers (samples, 2): source and target.
    """

    def __init__(self, lengths: np.ndarray, seed: int, batch: int, bucketing: Bucketing) -> None:
        self.lengths, self.seed, self.batch, self.bucketing = lengths, seed, batch, bucketing
        self._stream = SampleStream(seed, len(lengths))
        self._window = lru_cache(maxsize=2 * bucketing.hosts)(self._make_window)

    def take(self, samples: int) -> np.ndarray:
        """Return the global batch that follows after that many samples; integers (batch,).

        Raises ValueError if sorted batches of other sizes are asked for.
        """
        place = self._find_place(samples)
        if place is None:
            return self._draw(samples // self.batch, samples % self.batch)
        first, stop = place
        number = samples // self.batch - first
        hosts, length = self.bucketing.hosts, self.bucketing.window
        if self.bucketing.input == LOCAL:
            window, inside = divmod(number, length)
            start = first + window * length
            numbers = range(start, min(start + length, stop))
            return np.concatenate([self._window(numbers, host)[inside] for host in range(hosts)])
        turn, host = divmod(number, hosts)
        window, inside = divmod(turn, length)
        start = first + window * length * hosts + host
        batches = self._window(range(start, min(start + length * hosts, stop), hosts), 0)
        return batches[inside]

    def share(self, samples: int, rank: int, world_size: int) -> np.ndarray:
        """Return a rank's share of that batch, from the shortest to the longest pair.

        Ranks have like lengths, except with ``local`` input, where they have those of their hosts.
        """
        rows = self.take(samples)
        if self.bucketing.input == LOCAL:
            return sort_by_length(self.lengths, np.array_split(rows, world_size)[rank])
        return sort_by_length(self.lengths, rows)[rank::world_size]

    def _find_place(self, samples: int) -> tuple[int, int] | None:
        """Return the first whole batch of this batch's epoch, and the one after its last one.

        Returns nothing if the batch is in two epochs, or if nothing is sorted.
        """
        if self.bucketing.input == RANDOM:
            return None
        if samples % self.batch:
            raise ValueError(f"{samples} samples are not a number of batches of {self.batch}")
        size, number = len(self.lengths), samples // self.batch
        epoch = samples // size
        first, stop = -(-epoch * size // self.batch), (epoch + 1) * size // self.batch
        return (first, stop) if first <= number < stop else None

    def _draw(self, number: int, offset: int = 0) -> np.ndarray:
        return self._stream.take(number * self.batch + offset, self.batch)[0]

    def _make_window(self, numbers: range, host: int) -> np.ndarray:
        """Sort a window: the batches ``numbers``, or one host's parts of them; (batches, rows)."""
        random = make_generator(self.seed, f"window of host {host}", numbers.start)
        parts = self.bucketing.hosts if self.bucketing.input == LOCAL else 1
        drawn = np.concatenate([np.array_split(self._draw(n), parts)[host] for n in numbers])
        # Pairs of the same lengths stay in random order.
        longest = self.lengths[drawn].max(axis=1)
        rows = drawn[np.lexsort((self.lengths[drawn].sum(axis=1), longest))]
        shuffled: np.ndarray = random.permutation(rows.reshape(len(numbers), -1))
        # A host's part may be cut again for several ranks, which shall have like lengths.
        return random.permuted(shuffled, axis=1) if parts > 1 else shuffled


def measure_padding(order: BatchOrder, world_size: int, batches: int) -> Padding:
    """Count the padding of the first ``batches`` global batches on so many ranks."""
    tokens = places = waited = 0
    for number in range(batches):
        shares = [order.share(number * order.batch, rank, world_size) for rank in range(world_size)]
        longest = np.array([order.lengths[rows].max(axis=0) for rows in shares])
        sizes = np.array([len(rows) for rows in shares])
        tokens += sum(int(order.lengths[rows].sum()) for rows in shares)
        places += int(longest.sum(axis=1) @ sizes)
        waited += int(longest.max(axis=0).sum() * sizes.sum())
    return Padding(tokens, places, waited)


@dataclass(frozen=True)
class Pass:
    """Source and target, int64 (sentences, longest): PADDING follows the END of a sentence."""

    source: np.ndarray
    target: np.ndarray

    @property
    def target_tokens(self) -> int:
        """The tokens of the target, without padding."""
        return int(np.count_nonzero(self.target != PADDING))


@dataclass(frozen=True)
class Batch:
    """A rank's share of a global batch; ``target_tokens`` are those of the whole batch."""

    passes: tuple[Pass, ...]
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
        parts = self.cut(samples, pass_tokens, pass_sentences)
        passes = tuple(pad(self.pairs, part) for part in parts)
        return Batch(passes, self.count_tokens(samples)[1])

    def count_tokens(self, samples: int) -> tuple[int, int]:
        """Count the tokens of source and target of the whole global batch after ``samples``."""
        source, target = self.order.lengths[self.order.take(samples)].sum(axis=0).tolist()
        return source, target

    def cut(self, samples: int, pass_tokens: int, pass_sentences: int) -> Iterator[np.ndarray]:
        """Yield the rows of each pass of this rank's share, (n,), of ``pass_tokens`` at most.

        Every pass has at least one sentence, and at most ``pass_sentences``.
        """
        rows = self.order.share(samples, self.rank, self.world_size)
        source, target = self.order.lengths[rows].T
        first = 0
        while first < len(rows):
            longest = np.maximum.accumulate(source[first:]) + np.maximum.accumulate(target[first:])
            places = longest * np.arange(1, len(longest) + 1)
            count = max(1, int(np.searchsorted(places, pass_tokens, side="right")))
            count = min(count, pass_sentences)
            yield rows[first : first + count]
            first += count


def sort_by_length(lengths: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Sort ``rows``, integers (rows,), from the shortest to the longest pair.

    ``lengths`` are tokens, integers (pairs, 2).
    """
    return rows[np.lexsort((rows, *lengths[rows].T))]


def pad(pairs: Pairs, rows: np.ndarray) -> Pass:
    """Return the pairs ``rows``, int64 (rows,), in one padded block."""
    return Pass(_stack_padded(pairs.source, rows), _stack_padded(pairs.target, rows))


def _stack_padded(tokens: Tokens, rows: np.ndarray) -> np.ndarray:
    sentences = [tokens.row(int(row)) for row in rows]
    block = np.full((len(rows), max(map(len, sentences))), PADDING, np.int64)
    for place, sentence in zip(block, sentences, strict=True):
        place[: len(sentence)] = sentence
    return block
