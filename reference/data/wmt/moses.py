"""Words as Moses splits them, and which pairs of sentences its tools keep.

The reference of MLPerf 0.6 GNMT splits its text with Moses' ``tokenizer.perl`` and drops pairs of
the training text with ``clean-corpus-n.perl`` and a test whether latin-1 can encode them. Here
sacremoses splits, a port of those scripts to Python. A pair is dropped for the first of REASONS
that holds.

The words are written to files, single spaces between them, which are then read like any other pair
of files. Training text is done in pieces: an interrupted preparation continues with the next piece.

The vocabulary is byte-pair encoding of words. subword-nmt learns the merges from the words of both
languages, and applies them. Of two pairs that
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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path

import sacremoses
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from cepheid.reference.data.disk import explain_disk_errors
from cepheid.reference.data.store import OnProgress, StoreError, split_rows
from cepheid.reference.data.wmt.parallel_text import LANGUAGES, PIECE, Corpus, open_corpus
from cepheid.reference.data.workers import map_in_processes
from cepheid.rules.host import atomic_path, atomic_write

EMPTY, MANY_WORDS, UNEVEN, NOT_LATIN_1 = REASONS = ("empty", "many_words", "uneven", "not_latin_1")
MOST_UNEVEN = 9  # times as many words on one side as on the other
WORDS = "words"  # the name of the files with the words of the training text
UNKNOWN = 2
FIRST = 4  # the number of the most frequent subword
GOES_ON = "@@"  # ends a subword that is not the last one of its word
MOST_CACHED_WORDS = 500_000


def split_words(text: str, language: str) -> str:
    """Return the words of a sentence, special characters escaped, with single spaces between."""
    return " ".join(_load_tokenizer(language).tokenize(text, return_str=True).split())


def join_words(words: Sequence[str], language: str) -> str:
    """Return a sentence as it is written: the inverse of ``split_words``, as far as there is one.

    How many spaces stood between words is lost, and so is on which side of some marks they stood.
    """
    return _load_detokenizer(language).detokenize(words)


def find_reason(words: tuple[str, str], longest_words: int) -> str:
    """Return why a pair of the training text is dropped, one of REASONS, or nothing."""
    counts = [len(side.split()) for side in words]
    if not min(counts):
        return EMPTY
    if max(counts) > longest_words:
        return MANY_WORDS
    if max(counts) > MOST_UNEVEN * min(counts):
        return UNEVEN
    return "" if all(map(_is_latin_1, words)) else NOT_LATIN_1


def split_training_text(
    corpus: Corpus, folder: Path, longest_words: int, processes: int | None, on_progress: OnProgress
) -> tuple[Corpus, Mapping[str, int]]:
    """Write the words of the pairs that are kept; continue where an earlier call was interrupted.

    Returns them, and the numbers of pairs that are dropped, by reason.
    ``folder`` belongs to this corpus and this number alone. Raises StoreError as ``read_pair``
    does, and if the disk is full.
    """
    summary = folder / f"{WORDS}.json"  # the last file to be written
    with explain_disk_errors(folder):
        if not summary.exists():
            folder.mkdir(parents=True, exist_ok=True)
            pieces = [folder / f"{number:05}.json" for number in range(-(-len(corpus) // PIECE))]
            todo = [number for number, path in enumerate(pieces) if not path.exists()]
            work = partial(_split_piece, corpus, longest_words, pieces)
            done = len(pieces) - len(todo)
            for _ in map_in_processes(work, todo, processes, folder):
                done += 1
                on_progress(done, len(pieces))
            dropped = _join_pieces(folder, pieces)
            atomic_write(summary, json.dumps(dropped))
            for path in pieces:
                path.unlink()
    return open_corpus(folder, [WORDS]), json.loads(summary.read_bytes())


def write_text(folder: Path, name: str, sides: Sequence[Sequence[str]]) -> Corpus:
    """Write sentences in both languages to files and open them."""
    with explain_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for language, lines in zip(LANGUAGES, sides, strict=True):
            text = "".join(f"{line}\n" for line in lines)
            atomic_write(folder / f"{name}.{language}", text)
    return open_corpus(folder, [name])


def split_all(corpus: Corpus, folder: Path, name: str) -> Corpus:
    """Write the words of all pairs of a small corpus to files and open them."""
    pairs = [corpus.read_pair(number) for number in range(len(corpus))]
    sides = [
        [split_words(pair[side], language) for pair in pairs]
        for side, language in enumerate(LANGUAGES)
    ]
    return write_text(folder, name, sides)


def _split_piece(corpus: Corpus, longest_words: int, paths: Sequence[Path], number: int) -> None:
    """Write the words of one piece: the pairs that are kept, and how many are not."""
    dropped: Counter[str] = Counter()
    kept = []
    for row in range(number * PIECE, min((number + 1) * PIECE, len(corpus))):
        english, german = corpus.read_pair(row)
        words = split_words(english, LANGUAGES[0]), split_words(german, LANGUAGES[1])
        reason = find_reason(words, longest_words)
        dropped[reason] += 1
        if not reason:
            kept.append(words)
    atomic_write(paths[number], json.dumps([dropped, kept]))


def _join_pieces(folder: Path, paths: Sequence[Path]) -> dict[str, int]:
    """Write all pieces to one pair of files; return how many pairs were dropped, by reason."""
    dropped: Counter[str] = Counter()
    for side, language in enumerate(LANGUAGES):
        with (
            atomic_path(folder / f"{WORDS}.{language}") as temporary,
            open(temporary, "w", encoding="utf-8", newline="\n") as file,
        ):
            for path in paths:
                counts, kept = json.loads(path.read_bytes())
                file.writelines(f"{words[side]}\n" for words in kept)
                dropped.update(counts if not side else {})
    return {reason: dropped[reason] for reason in REASONS}


def _is_latin_1(text: str) -> bool:
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        return False
    return True


_load_tokenizer = lru_cache(sacremoses.MosesTokenizer)
_load_detokenizer = lru_cache(sacremoses.MosesDetokenizer)


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
        return self._bpe.segment_tokens(words)

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


def learn_merges(path: Path, corpus: Corpus, merges: int, size: int, processes: int | None) -> None:
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
    pieces, work = split_rows(len(corpus), PIECE), partial(_count_words_of_rows, corpus)
    for _, found in map_in_processes(work, pieces, processes, corpus.folder):
        counts.update(found)
    return counts


def _count_words_of_rows(corpus: Corpus, rows: range) -> Counter[str]:
    counts: Counter[str] = Counter()
    for number in rows:
        for side in corpus.read_pair(number):
            counts.update(side.split())
    return counts
