"""Preparing pairs of sentences: from text to packed numbers, as ``parameters`` describes them."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from cepheid.reference.data import store
from cepheid.reference.data.columns import Ragged
from cepheid.reference.data.dataset import Work
from cepheid.reference.data.preparation import Contents
from cepheid.reference.data.sentences.batches import TOKEN
from cepheid.reference.data.wmt import parallel_text
from cepheid.reference.data.wmt.cleaning import (
    check_evaluation,
    check_training,
    count_left_out,
    count_tokens,
    ignore_progress,
    locate_first_empty,
    select_pairs,
)
from cepheid.reference.data.wmt.drawn_text import DrawnText
from cepheid.reference.data.wmt.grammar import EVALUATION, TRAIN
from cepheid.reference.data.wmt.parallel_text import PIECE, Corpus
from cepheid.reference.data.wmt.parameters import GRAMMAR, MOSES, TextParameters, name_vocabulary
from cepheid.reference.data.wmt.vocabulary import (
    MERGES_SUFFIX,
    MODEL_SUFFIX,
    Encoding,
    train_vocabulary,
)
from cepheid.rules.host import atomic_write

PARTS = 3  # text, counting tokens and packing count equally
LINES_PER_SAMPLE = 4  # that are read for a subset: some pairs are left out
MOSES_PACKAGES = ("sacremoses", "subword-nmt")


def plan(parameters: TextParameters, work: Work) -> Contents:
    """Find or draw the text, and return what is to be packed of it.

    Raises StoreError where text is missing, is not UTF-8, has no translation line by line, or has
    fewer pairs than the definition uses.
    """
    source = _Source(parameters, work)
    read = {GRAMMAR: source.draw_text, MOSES: source.split_text}
    text = read.get(parameters.source, source.read_text)()
    samples = (parameters.train_samples, parameters.evaluation_samples)
    kept = select_pairs(text.parts, text.lengths, samples, parameters.may_have_fewer)
    rows = _Rows(Encoding(text.vocabulary), text.parts, kept, text.references)
    counted = [of[kept] for of, kept in zip(text.lengths, rows.kept, strict=True)]
    source_ends, target_ends = np.cumsum(np.concatenate(counted), axis=0).T * TOKEN.itemsize
    return Contents(
        {
            "source": Ragged(np.ascontiguousarray(source_ends)),
            "target": Ragged(np.ascontiguousarray(target_ends)),
            "reference": Ragged(np.cumsum(rows.reference_bytes())),
        },
        partial(_draw, rows),
        {
            "text_sha256": text.digests,
            "vocabulary_sha256": hashlib.sha256(text.vocabulary.read_bytes()).hexdigest(),
            "train_samples": len(kept[0]),
            "left_out": {**count_left_out(text.lengths[0], len(kept[0])), **text.dropped},
            **text.counts,
            **locate_first_empty(text.parts[0], text.lengths[0]),
        },
        packages=MOSES_PACKAGES if parameters.source == MOSES else ("sentencepiece",),
        chunk_rows=PIECE,
        judge=partial(_add_vocabulary, text.vocabulary),
        parts=PARTS,
        rows=len(rows),
    )


@dataclass(frozen=True)
class _Text:
    """The text of both parts, training first, and the tokens of each of its pairs.

    ``references`` has the evaluation text as it is written. ``digests`` are those of the files of
    both parts, ``dropped`` counts pairs that are not even in ``parts``, and ``counts`` has the
    lines of files that were distributed; where ``parts`` are all that there is, both are empty.
    """

    vocabulary: Path
    parts: tuple[Corpus, Corpus]
    lengths: tuple[np.ndarray, np.ndarray]
    references: Corpus
    digests: tuple[str, str]
    dropped: Mapping[str, int]
    counts: Mapping[str, Any]


@dataclass(frozen=True)
class _Source:
    parameters: TextParameters
    work: Work

    def read_text(self) -> _Text:
        """Return text in files that are there; all of it is used."""
        asked = self.parameters
        source = self.work.folder.with_name(asked.source)
        names = parallel_text.choose_files(source, asked.train_files, asked.is_subset)
        train = parallel_text.open_corpus(source, names)
        evaluation = parallel_text.open_corpus(source, asked.evaluation_files)
        if asked.is_subset:
            train = train.keep_first(LINES_PER_SAMPLE * asked.train_samples)
            evaluation = evaluation.keep_first(asked.evaluation_samples)
        check_evaluation(evaluation, asked.evaluation_samples)
        check_training(train, asked.train_samples)
        vocabulary = self._make_vocabulary(train)
        lengths = self._count_tokens(vocabulary, train, evaluation)
        other = train.count_lines() if [*names] != [*asked.train_files] else {}
        return self._make_text(vocabulary, (train, evaluation), lengths, other)

    def draw_text(self) -> _Text:
        """Return sentences drawn until enough of them are short and different."""
        asked, folder = self.parameters, self.work.folder
        folder = folder.with_name(f"{folder.name}-text")
        drawn = DrawnText(folder, asked.seed, self.work.processes)
        vocabulary = self._make_vocabulary(drawn.open_round(TRAIN, 1, asked.train_samples))
        encoding = Encoding(vocabulary)

        def count(corpus: Corpus) -> np.ndarray:
            longest = asked.longest_tokens
            return count_tokens(encoding, corpus, longest, self.work.processes, ignore_progress)

        train, evaluation = (
            drawn.draw_until_enough(part, wanted, count, self.work.report_part(third, PARTS))
            for third, (part, wanted) in enumerate(
                [(TRAIN, asked.train_samples), (EVALUATION, asked.evaluation_samples)]
            )
        )
        return self._make_text(vocabulary, (train[0], evaluation[0]), (train[1], evaluation[1]))

    def split_text(self) -> _Text:
        """Return distributed text in words, without the pairs that Moses' tools drop."""
        from cepheid.reference.data.wmt import moses  # needs packages that only this text needs

        asked = self.parameters
        source = self.work.folder.with_name(asked.source)
        names = parallel_text.choose_files(source, asked.train_files, asked.is_subset)
        train = parallel_text.open_distributed(source, names)
        check_training(train, asked.train_samples)
        segments = parallel_text.read_test_sets(source, asked.evaluation_files)
        if asked.is_subset:
            train = train.keep_first(LINES_PER_SAMPLE * asked.train_samples)
            first = slice(asked.evaluation_samples)
            segments = segments[0][first], segments[1][first]
        made_of = hashlib.sha256(
            json.dumps(
                [
                    parallel_text.compute_digest(train),
                    *([len(train)] if asked.is_subset else []),
                    segments,
                    asked.longest_words,
                    store.find_versions(MOSES_PACKAGES),
                ]
            ).encode()
        ).hexdigest()
        folder = self.work.folder.with_name(f"{asked.source}-words-{made_of[:8]}")
        references = moses.write_text(folder, EVALUATION, segments)
        check_evaluation(references, asked.evaluation_samples)
        evaluation = moses.split_all(references, folder, f"{EVALUATION}-words")
        kept, dropped = moses.split_training_text(
            train, folder, asked.longest_words, self.work.processes, self.work.report_part(0, PARTS)
        )
        name = (
            f"{TextParameters.generator}-vocabulary-{asked.vocabulary}-{asked.merges}-{made_of[:8]}"
        )
        vocabulary = self.work.folder.with_name(f"{name}{MERGES_SUFFIX}")
        moses.learn_merges(vocabulary, kept, asked.merges, asked.vocabulary, self.work.processes)
        lengths = self._count_tokens(vocabulary, kept, evaluation)
        digests = parallel_text.compute_digest(train), parallel_text.compute_digest(references)
        parts = (kept, evaluation)
        return _Text(
            vocabulary, parts, lengths, references, digests, dropped, {"lines": train.count_lines()}
        )

    def _count_tokens(
        self, vocabulary: Path, train: Corpus, evaluation: Corpus
    ) -> tuple[np.ndarray, np.ndarray]:
        encoding, longest = Encoding(vocabulary), self.parameters.longest_tokens
        return (
            count_tokens(
                encoding, train, longest, self.work.processes, self.work.report_part(1, PARTS)
            ),
            count_tokens(encoding, evaluation, None, self.work.processes, ignore_progress),
        )

    def _make_text(
        self,
        vocabulary: Path,
        parts: tuple[Corpus, Corpus],
        lengths: tuple[np.ndarray, np.ndarray],
        lines: Mapping[str, int] = MappingProxyType({}),
    ) -> _Text:
        train, evaluation = (parallel_text.compute_digest(part) for part in parts)
        counts = {"lines": lines} if lines else {}
        return _Text(vocabulary, parts, lengths, parts[1], (train, evaluation), {}, counts)

    def _make_vocabulary(self, corpus: Corpus) -> Path:
        size, digest = self.parameters.vocabulary, parallel_text.compute_digest(corpus)
        made_of = f"{TextParameters.version}-{size}-{digest[:8]}"
        made_of += f"-{len(corpus)}" if self.parameters.is_subset else ""
        vocabulary = self.work.folder.with_name(
            f"{TextParameters.generator}-vocabulary-{made_of}{MODEL_SUFFIX}"
        )
        train_vocabulary(vocabulary, corpus, size)
        return vocabulary


@dataclass(frozen=True)
class _Rows:
    """The pairs of both parts that are kept, by their numbers, in the order of the rows."""

    encoding: Encoding
    parts: tuple[Corpus, ...]
    kept: tuple[np.ndarray, ...]
    references: Corpus

    def __len__(self) -> int:
        return sum(map(len, self.kept))

    def read_pair(self, row: int) -> tuple[str, str]:
        train = len(self.kept[0])
        part, number = (0, row) if row < train else (1, row - train)
        return self.parts[part].read_pair(int(self.kept[part][number]))

    def read_reference(self, row: int) -> str:
        """Return the German text of a row that is for evaluation, or nothing."""
        number = row - len(self.kept[0])
        return self.references.read_pair(int(self.kept[1][number]))[1] if number >= 0 else ""

    def reference_bytes(self) -> np.ndarray:
        """Return the bytes of each row's ``reference``; int64 (rows,)."""
        sizes = np.zeros(len(self), np.int64)
        for row in range(len(self.kept[0]), len(self)):
            sizes[row] = len(self.read_reference(row).encode())
        return sizes


def _draw(rows: _Rows, numbers: range) -> dict[str, bytes]:
    drawn: dict[str, list[bytes]] = {"source": [], "target": [], "reference": []}
    for row in numbers:
        first, second = rows.read_pair(row)
        drawn["source"].append(np.array(rows.encoding.encode(first), TOKEN).tobytes())
        drawn["target"].append(np.array(rows.encoding.encode(second), TOKEN).tobytes())
        drawn["reference"].append(rows.read_reference(row).encode())
    return {name: b"".join(values) for name, values in drawn.items()}


def _add_vocabulary(vocabulary: Path, folder: Path) -> None:
    name = name_vocabulary(MOSES if vocabulary.suffix == MERGES_SUFFIX else GRAMMAR)
    atomic_write(folder / name, vocabulary.read_bytes())
