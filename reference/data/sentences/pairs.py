"""Prepared pairs of sentences, as numbers of subwords; ``wmt`` prepares them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

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
