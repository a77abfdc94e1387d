"""Text files of sentences from the grammar, in the layout of real text.

A pair is used only if neither side has more than ``longest_tokens`` tokens and no earlier pair of
its part has the same English sentence, in the evaluation set too. So rounds of sentences are drawn,
each in files of its own (``train-1.en``, ``train-2.en``, …), until enough of them can be used. The
vocabulary is made of the first round, whatever the length of its sentences: how long a sentence is
depends on it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from cepheid.reference.data import disk
from cepheid.reference.data.store import OnProgress, StoreError, split_rows
from cepheid.reference.data.wmt import grammar, parallel_text
from cepheid.reference.data.wmt.cleaning import ignore_progress, mark_repeated
from cepheid.reference.data.wmt.parallel_text import LANGUAGES, PIECE, Corpus
from cepheid.reference.data.workers import map_in_processes
from cepheid.rules.host import atomic_write

MOST_ROUNDS = 20

CountTokens = Callable[[Corpus], np.ndarray]


@dataclass(frozen=True)
class DrawnText:
    """Where the sentences of one seed are written."""

    folder: Path
    seed: int
    processes: int | None

    def write(
        self, part: str, name: str, rows: range, on_progress: OnProgress = ignore_progress
    ) -> None:
        """Write the sentences ``rows`` of a part to files called ``name``; existing ones stay."""
        paths = [self.folder / f"{name}.{language}" for language in LANGUAGES]
        if all(path.exists() for path in paths):
            return
        with disk.explain_disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            pieces = split_rows(len(rows), PIECE)
            written: dict[range, list[tuple[str, str]]] = {}
            work = partial(_make_sentences, self.seed, part, rows)
            for piece, pairs in map_in_processes(work, pieces, self.processes, self.folder):
                written[piece] = pairs
                on_progress(sum(map(len, written.values())), len(rows))
            for side, path in enumerate(paths):
                text = "".join(f"{pair[side]}\n" for p in pieces for pair in written[p])
                atomic_write(path, text.encode())

    def open_round(self, part: str, number: int, size: int) -> Corpus:
        """Write round ``number``, from 1 on, of ``size`` sentences, and open its files."""
        name = _name_round(part, number)
        self.write(part, name, range((number - 1) * size, number * size))
        return parallel_text.open_corpus(self.folder, [name])

    def draw_until_enough(
        self, part: str, wanted: int, count_tokens: CountTokens, on_progress: OnProgress
    ) -> tuple[Corpus, np.ndarray]:
        """Write rounds of sentences until ``wanted`` pairs can be used.

        Returns all of them and what ``count_tokens`` says of each, repeated pairs marked; int64
        (pairs, 2). Raises StoreError if MOST_ROUNDS are not enough.
        """
        lengths: list[np.ndarray] = []
        for number in range(1, MOST_ROUNDS + 1):
            this = self.open_round(part, number, wanted)
            lengths.append(count_tokens(this))
            names = [_name_round(part, k) for k in range(1, number + 1)]
            corpus = parallel_text.open_corpus(self.folder, names)
            marked = mark_repeated(corpus, np.concatenate(lengths))
            left = int(np.count_nonzero(marked[:, 0] > 0))
            on_progress(min(left, wanted), wanted)
            if left >= wanted:
                return corpus, marked
        raise StoreError(
            f"{self.folder}: {left:,} of {len(corpus):,} sentences drawn for {part} are short and "
            f"different enough, but the definition uses {wanted:,}. Raise data.longest_tokens, or "
            "use fewer sentences"
        )


def _name_round(part: str, number: int) -> str:
    return f"{part}-{number}"


def _make_sentences(seed: int, part: str, rows: range, piece: range) -> list[tuple[str, str]]:
    return [grammar.make_pair(seed, part, rows[number]) for number in piece]
