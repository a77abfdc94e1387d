"""The ``data`` section of definitions whose generator is ``wmt``, parsed and checked."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from cepheid.reference.data import dataset
from cepheid.reference.data.store import StoreError
from cepheid.reference.data.wmt.grammar import EVALUATION, TRAIN, VERSIONS
from cepheid.reference.data.wmt.vocabulary import TOKEN, UNKNOWN

GENERATOR = "wmt"
GENERATOR_VERSION = 1  # to be raised by every change that stores something else
GRAMMAR, REAL, MOSES = SOURCES = ("grammar", "WMT17", "WMT16")


@dataclass(frozen=True)
class TextParameters(dataset.Parameters):
    """The ``data`` section of a definition.

    ``seed`` and ``grammar``, its version, are those of sentences from the grammar. The file names,
    without their language, are those of real text. Text whose words Moses splits has ``merges``
    and at most ``longest_words`` on a side.

    Raises StoreError for values that make no sense.
    """

    generator = GENERATOR

    source: str
    vocabulary: int
    longest_tokens: int
    train_samples: int
    evaluation_samples: int
    seed: int = 20260101
    grammar: int = 1
    merges: int = 0
    longest_words: int = 80
    train_files: tuple[str, ...] = (TRAIN,)
    evaluation_files: tuple[str, ...] = (EVALUATION,)

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise StoreError(f"data.source is {self.source!r}, expected {', '.join(SOURCES)}")
        if (self.source == MOSES) != (self.merges > 0) or self.longest_words < 1:
            raise StoreError(
                f"data.merges and longest_words are {self.merges} and {self.longest_words}: "
                f"expected 1 or more, and merges for {MOSES} alone"
            )
        if self.grammar not in VERSIONS:
            raise StoreError(f"data.grammar is {self.grammar!r}, expected one of {VERSIONS}")
        counts = (self.train_samples, self.evaluation_samples, self.longest_tokens)
        if min(counts) < 1 or not UNKNOWN < self.vocabulary <= np.iinfo(TOKEN).max:
            raise StoreError(
                f"data.train_samples, evaluation_samples and longest_tokens are {counts}, "
                f"vocabulary {self.vocabulary}: expected 1 or more, and at most "
                f"{np.iinfo(TOKEN).max:,} tokens in the vocabulary"
            )
        for name in ("train_files", "evaluation_files"):
            files = getattr(self, name)
            if not files or isinstance(files, str):
                raise StoreError(f"data.{name} is {files!r}, expected a list of one name or more")

    @property
    def draws_until_enough(self) -> bool:
        """Whether sentences are drawn until enough are short and different, in both parts."""
        return self.source == GRAMMAR and self.grammar > 1

    @property
    def title(self) -> str:
        """Return what a reader sees first in the name of the folder, with the source."""
        return f"{GENERATOR}-{self.source}-{self.rows}"

    @property
    def as_json(self) -> dict[str, Any]:
        """Return the parameters for the manifest."""
        made = {"seed": self.seed, "grammar_version": self.grammar}
        files: dict[str, Any] = {
            "train_files": list(self.train_files),
            "evaluation_files": list(self.evaluation_files),
        }
        if self.source == MOSES:
            files |= {"merges": self.merges, "longest_words": self.longest_words}
        return {
            "generator_version": GENERATOR_VERSION,
            "source": self.source,
            "vocabulary": self.vocabulary,
            "longest_tokens": self.longest_tokens,
            "train_samples": self.train_samples,
            "evaluation_samples": self.evaluation_samples,
            **(made if self.source == GRAMMAR else files),
        }
