"""The vocabulary of subwords, one for both languages.

It is a file: ``vocabulary.model`` has byte-pair encoding by sentencepiece, of text as it is;
``vocabulary.json`` has the merges of words that ``moses`` splits.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import sentencepiece

from cepheid.reference.data.disk import explain_disk_errors
from cepheid.reference.data.sentences.batches import END, PADDING, UNKNOWN, Subwords
from cepheid.reference.data.store import StoreError
from cepheid.reference.data.wmt.parallel_text import Corpus
from cepheid.rules.host import atomic_write

VOCABULARY_PAIRS = 1_000_000
MODEL_SUFFIX, MERGES_SUFFIX = ".model", ".json"


@dataclass(frozen=True)
class Encoding:
    """The encoding of text as token numbers by the vocabulary in a file; it can be pickled."""

    vocabulary: Path

    def encode(self, text: str) -> list[int]:
        """Return the token numbers of a sentence, END last."""
        return [*_load_subwords(self.vocabulary).encode(text), END]


def parse_subwords(name: str, content: bytes) -> Subwords:
    """Return the vocabulary in a file of that name."""
    if Path(name).suffix == MERGES_SUFFIX:
        from cepheid.reference.data.wmt.moses import parse_merges  # takes long to import

        return parse_merges(content)
    return sentencepiece.SentencePieceProcessor(model_proto=content)


@lru_cache(maxsize=4)
def _load_subwords(vocabulary: Path) -> Subwords:
    return parse_subwords(vocabulary.name, vocabulary.read_bytes())


def train_vocabulary(path: Path, corpus: Corpus, size: int) -> None:
    """Train a vocabulary of ``size`` subwords on a corpus and write it, unless the file exists.

    Raises StoreError if the text cannot be read, is empty, or needs a larger vocabulary.
    """
    if path.exists():
        return

    def read_text() -> Iterator[str]:
        for number in range(0, len(corpus), -(-len(corpus) // VOCABULARY_PAIRS)):
            try:
                yield from corpus.read_pair(number)
            except StoreError as error:
                errors.append(error)  # sentencepiece replaces it by an error of its own
                raise

    errors: list[StoreError] = []
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=read_text(),
            model_writer=model,
            model_type="bpe",
            vocab_size=size,
            hard_vocab_limit=False,  # a short text has fewer subwords
            character_coverage=1.0,
            pad_id=PADDING,
            eos_id=END,
            unk_id=UNKNOWN,
            bos_id=-1,
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        if errors:
            raise errors[0] from error
        if "required_chars" in str(error):
            raise StoreError(
                f"{corpus.folder}: the training text has more different characters than "
                f"the {size:,} tokens of data.vocabulary, and each needs one (sentencepiece: "
                f"{error}). "
                "Choose a larger vocabulary."
            ) from error
        if not any("".join(corpus.read_pair(number)) for number in range(len(corpus))):
            raise StoreError(
                f"{corpus.folder}: all lines of the training text are empty. Unpack these files "
                "again."
            ) from error
        raise
    with explain_disk_errors(path):
        atomic_write(path, model.getvalue())
