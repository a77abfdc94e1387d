"""Words as Moses splits them, and which pairs of sentences its tools keep.

The reference of MLPerf 0.6 GNMT splits its text with Moses' ``tokenizer.perl`` and drops pairs of
the training text with ``clean-corpus-n.perl`` and a test whether latin-1 can encode them. Here
sacremoses splits, a port of those scripts to Python. A pair is dropped for the first of REASONS
that holds.

The words are written to files, single spaces between them, which are then read like any other pair
of files. Training text is done in pieces: an interrupted preparation continues with the next piece.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import sacremoses

from cepheid.reference.data.disk import explain_disk_errors
from cepheid.reference.data.store import OnProgress
from cepheid.reference.data.wmt.parallel_text import LANGUAGES, PIECE, Corpus, open_corpus
from cepheid.reference.data.workers import map_in_processes
from cepheid.rules.host import atomic_path, atomic_write

EMPTY, MANY_WORDS, UNEVEN, NOT_LATIN_1 = REASONS = (
    "empty",
    "many_words",
    "uneven",
    "not_latin_1",
)
MOST_UNEVEN = 9  # times as many words on one side as on the other
WORDS = "words"  # the name of the files with the words of the training text


def split_words(text: str, language: str) -> str:
    """Return the words of a sentence, special characters escaped, with single spaces between."""
    words: str = _load_tokenizer(language).tokenize(text, return_str=True)
    return " ".join(words.split())


def join_words(words: Sequence[str], language: str) -> str:
    """Return a sentence as it is written: the inverse of ``split_words``, as far as there is one.

    How many spaces stood between words is lost, and so is on which side of some marks they stood.
    """
    text: str = _load_detokenizer(language).detokenize(words)
    return text


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


@dataclass(frozen=True)
class SplitText:
    """The words of a corpus, written to ``folder``; ``dropped`` counts pairs by reason."""

    corpus: Corpus
    dropped: Mapping[str, int]


def split_training_text(
    corpus: Corpus,
    folder: Path,
    longest_words: int,
    processes: int | None,
    on_progress: OnProgress,
) -> SplitText:
    """Write the words of the pairs that are kept; continue where an earlier call was interrupted.

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
    return SplitText(open_corpus(folder, [WORDS]), json.loads(summary.read_bytes()))


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


@lru_cache
def _load_tokenizer(language: str) -> Any:
    return sacremoses.MosesTokenizer(language)


@lru_cache
def _load_detokenizer(language: str) -> Any:
    return sacremoses.MosesDetokenizer(language)
