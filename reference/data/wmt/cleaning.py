"""Which pairs of sentences are used: the first ones that are neither empty nor too long."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from cepheid.reference.data.store import OnProgress, StoreError, split_rows
from cepheid.reference.data.wmt.parallel_text import PIECE, Corpus
from cepheid.reference.data.wmt.vocabulary import Encoding
from cepheid.reference.data.workers import map_in_processes

EMPTY, TOO_LONG, REPEATED = -1, -2, -3  # instead of a length


def ignore_progress(done: int, total: int) -> None:
    """Report progress to nobody."""


def check_evaluation(corpus: Corpus, evaluation_samples: int) -> None:
    """Check the evaluation text before hours of work go into the training text.

    Raises StoreError if a side of a pair is empty or the number of pairs is not as defined.
    """
    for number in range(len(corpus)):
        if not all(corpus.read_pair(number)):
            raise StoreError(
                f"{corpus.folder / corpus.locate_empty(number)}: it is empty. All of the "
                "evaluation set is evaluated: unpack these files again."
            )
    if len(corpus) != evaluation_samples:
        raise StoreError(
            f"{corpus.folder}: {len(corpus):,} pairs to evaluate, but the definition says "
            f"evaluation_samples: {evaluation_samples:,}. Unpack these files again; those of "
            "HuggingFace's wmt16 and wmt17 are other test sets, its wmt14 has newstest2014."
        )


def check_training(corpus: Corpus, train_samples: int) -> None:
    """Raise StoreError if there are too few lines, before hours of work go into them."""
    if len(corpus) < train_samples:
        counts = ", ".join(f"{count:,} in {name}" for name, count in corpus.count_lines().items())
        raise StoreError(
            f"{corpus.folder}: {len(corpus):,} training pairs ({counts}), but the definition uses "
            f"{train_samples:,} (train_samples). Unpack whole files: docs/your-data.md says "
            "how many lines each has."
        )


def count_tokens(
    encoding: Encoding,
    corpus: Corpus,
    longest: int | None,
    processes: int | None,
    on_progress: OnProgress,
) -> np.ndarray:
    """Return the tokens of both sides of each pair, END included; int64 (pairs, 2).

    A pair with an empty side has EMPTY twice. A pair with a side of more than ``longest`` tokens
    has TOO_LONG twice.
    """
    lengths = np.zeros((len(corpus), 2), np.int64)
    pieces = split_rows(len(corpus), PIECE)
    work = partial(_count_tokens_of_rows, encoding, corpus, longest)
    done = 0
    for rows, found in map_in_processes(work, pieces, processes, corpus.folder):
        lengths[rows.start : rows.stop] = found
        done += len(rows)
        on_progress(done, len(corpus))
    return lengths


def _count_tokens_of_rows(
    encoding: Encoding, corpus: Corpus, longest: int | None, rows: range
) -> np.ndarray:
    lengths = []
    for number in rows:
        sides = corpus.read_pair(number)
        counts = [len(encoding.encode(side)) for side in sides]
        if not all(sides):
            counts = [EMPTY, EMPTY]
        elif longest and max(counts) > longest:
            counts = [TOO_LONG, TOO_LONG]
        lengths.append(counts)
    return np.array(lengths, np.int64)


def mark_repeated(corpus: Corpus, lengths: np.ndarray) -> np.ndarray:
    """Mark pairs whose English sentence an earlier pair has, whatever the German one is.

    Returns a copy of ``lengths``, (pairs, 2), in which the rows of those that could be used
    otherwise have REPEATED twice.
    """
    marked, seen = lengths.copy(), set()
    for number in np.flatnonzero(lengths[:, 0] > 0):
        english = corpus.read_pair(int(number))[0]
        if english in seen:
            marked[number] = REPEATED
        seen.add(english)
    return marked


def count_left_out(lengths: np.ndarray, train_samples: int) -> dict[str, int]:
    """Count the training pairs (pairs, 2) that are not used, by reason; of all that are there."""
    counts = {
        name: int(np.count_nonzero(lengths[:, 0] == mark))
        for name, mark in (("empty", EMPTY), ("too_long", TOO_LONG), ("repeated", REPEATED))
    }
    counts = {name: count for name, count in counts.items() if count or name != "repeated"}
    surplus = len(lengths) - sum(counts.values()) - train_samples
    return {**counts, "not_needed": surplus} if surplus else counts


def locate_first_empty(corpus: Corpus, lengths: np.ndarray) -> dict[str, str]:
    """Return the entry of the manifest for the first empty line, or nothing if there is none.

    ``lengths`` are those of ``count_tokens``, (pairs, 2).
    """
    empty = np.flatnonzero(lengths[:, 0] == EMPTY)
    return {"first_empty": corpus.locate_empty(int(empty[0]))} if len(empty) else {}


def select_pairs(
    parts: Sequence[Corpus],
    lengths: Sequence[np.ndarray],
    samples: Sequence[int],
    may_be_fewer: bool = False,
) -> tuple[np.ndarray, ...]:
    """Return the numbers of the pairs that are used, int64 (pairs,) for each part.

    ``lengths`` has one array of ``count_tokens`` for each part, ``samples`` how many pairs are used
    of it: the first ones that are left after cleaning, in the order of the files, so that everyone
    who has these files has the same pairs. Raises StoreError if fewer are left for training, unless
    there ``may_be_fewer``, of which at least one must be left.
    """
    left = [np.flatnonzero(counted[:, 0] > 0) for counted in lengths]
    if len(left[0]) < (1 if may_be_fewer else samples[0]):
        raise StoreError(
            f"{parts[0].folder}: {len(left[0]):,} of {len(parts[0]):,} training pairs are left "
            f"after cleaning, but the definition uses the first {samples[0]:,} (train_samples). "
            "Nothing was packed. Compare the files with docs/your-data.md: whole ones have "
            "more pairs"
        )
    return tuple(numbers[:count] for numbers, count in zip(left, samples, strict=True))
