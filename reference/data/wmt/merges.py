"""A vocabulary of merges: byte-pair encoding of words, as the reference of MLPerf 0.6 GNMT has it.

subword-nmt learns the merges from the words of both languages, and applies them. Of two pairs that
are as frequent it merges the one that sorts last, so the same text gives the same merges. The
vocabulary are the subwords that the training text has, the most frequent first, after PADDING, END,
UNKNOWN and one number that nothing has. If there are more than the definition has room for, the
rarest are left out.

The numbers of the first ones are this suite's, not those of the reference (PAD, UNK, BOS, EOS). It
begins translations with BOS, which nothing else has; here they begin with END. The order of rows
changes nothing in the mathematics.
"""

import contextlib
import io
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from cepheid.reference.data.disk import explain_disk_errors
from cepheid.reference.data.store import StoreError
from cepheid.reference.data.wmt.moses import join_words
from cepheid.reference.data.wmt.parallel_text import LANGUAGES, PIECE, Corpus
from cepheid.reference.data.workers import map_in_processes
from cepheid.rules.host import atomic_write

UNKNOWN = 2
FIRST = 4  # the number of the most frequent subword
GOES_ON = "@@"  # ends a subword that is not the last one of its word
MOST_CACHED_WORDS = 500_000


@dataclass(frozen=True)
class Merges:
    """Merges in the form of subword-nmt, and the subwords in the order of their numbers."""

    codes: str
    subwords: tuple[str, ...]

    def __len__(self) -> int:
        return FIRST + len(self.subwords)

    def encode(self, text: str) -> list[int]:
        """Return the numbers of the subwords of words with single spaces between."""
        return [self._numbers.get(subword, UNKNOWN) for subword in self.split(text.split())]

    def decode(self, numbers: Sequence[int]) -> str:
        """Return German text, as it is written; numbers that are no subwords are left out."""
        subwords = [self.subwords[n - FIRST] for n in numbers if FIRST <= n < len(self)]
        text = "".join(
            subword.removesuffix(GOES_ON) if subword.endswith(GOES_ON) else f"{subword} "
            for subword in subwords
        )
        return join_words(text.split(), LANGUAGES[1])

    def split(self, words: Iterable[str]) -> list[str]:
        """Return the subwords of some words, in the vocabulary or not."""
        if len(self._bpe.cache) > MOST_CACHED_WORDS:
            self._bpe.cache.clear()
        subwords: list[str] = self._bpe.segment_tokens(words)
        return subwords

    @cached_property
    def _bpe(self) -> BPE:
        return BPE(io.StringIO(self.codes), separator=GOES_ON)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {subword: FIRST + place for place, subword in enumerate(self.subwords)}


def parse_merges(content: bytes) -> Merges:
    """Return the vocabulary of a file that ``learn_merges`` wrote."""
    facts = json.loads(content)
    return Merges(facts["codes"], tuple(facts["subwords"]))


def learn_merges(
    path: Path,
    corpus: Corpus,
    merges: int,
    size: int,
    processes: int | None,
) -> None:
    """Learn so many merges from the words of a corpus and write at most ``size`` subwords.

    An existing file stays. Raises StoreError if the corpus has no two letters to merge.
    """
    if path.exists():
        return
    counts = _count_words(corpus, processes)
    learnt = io.StringIO()
    words = sorted(counts, key=lambda word: (-counts[word], word))
    if max(map(len, words), default=0) < 2:
        raise StoreError(f"{corpus.folder}: the training text has no words. Unpack it again.")
    with contextlib.redirect_stderr(io.StringIO()):  # it shows its progress
        learn_bpe([f"{word} {counts[word]}" for word in words], learnt, merges, is_dict=True)
    codes = learnt.getvalue()
    splitter, seen = Merges(codes, ()), Counter[str]()
    for word in words:
        for subword in splitter.split([word]):
            seen[subword] += counts[word]
    subwords = sorted(seen, key=lambda subword: (-seen[subword], subword))[: size - FIRST]
    with explain_disk_errors(path):
        atomic_write(path, json.dumps({"codes": codes, "subwords": subwords}))


def _count_words(corpus: Corpus, processes: int | None) -> Counter[str]:
    counts: Counter[str] = Counter()
    pieces = range(-(-len(corpus) // PIECE))
    work = partial(_count_words_of_piece, corpus)
    for _, found in map_in_processes(work, pieces, processes, corpus.folder):
        counts.update(found)
    return counts


def _count_words_of_piece(corpus: Corpus, piece: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    for number in range(piece * PIECE, min((piece + 1) * PIECE, len(corpus))):
        for side in corpus.read_pair(number):
            counts.update(side.split())
    return counts
