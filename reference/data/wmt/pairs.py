"""Sentences in English and German as numbers of subwords.

Source
    Pairs of plain text files, see ``parallel_text``: for ``source: WMT17`` those in the folder
    ``WMT17`` under the data root, as distributed (statmt.org/wmt17); for ``source: grammar`` files
    that ``grammar`` writes.

Cleaning
    White space is single spaces. Training pairs of which one side is empty, as some of WMT's are,
    or has more than ``longest_tokens`` tokens are left out; ``remarks`` counts them. In the
    evaluation set an empty side is an error: nothing of that set may be left out.

Vocabulary
    One for both languages: byte-pair encoding (sentencepiece) of the training text, with one thread
    and without sampling, so that the same text gives the same vocabulary. Of more than
    VOCABULARY_PAIRS pairs it sees evenly spaced ones.

Stored arrays
    ``source``, ``target``  ragged: token numbers, uint16, END at the end of each sentence
    ``reference``           ragged: the German text of pairs that are for evaluation, UTF-8

    Rows [0, train) are for training, the next ones for evaluation. The vocabulary is
    ``vocabulary.model`` beside them; its digest is a parameter in the manifest.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from reference.data import dataset, preparation, store
from reference.data.columns import Ragged
from reference.data.store import Manifest, OnProgress, StoreError
from reference.data.wmt import grammar, parallel_text
from reference.data.wmt.cleaning import (
    EMPTY,
    PIECE,
    TOO_LONG,
    check_evaluation,
    count_tokens,
    locate_first_empty,
    select_pairs,
)
from reference.data.wmt.parallel_text import LANGUAGES, Corpus
from reference.data.wmt.vocabulary import END, TOKEN, UNKNOWN, Encoding, train_vocabulary
from reference.data.workers import map_in_processes
from rules.host import atomic_write

GENERATOR = "wmt"
GENERATOR_VERSION = 1  # to be raised by every change that stores something else
GRAMMAR, REAL = "grammar", "WMT17"
VOCABULARY = "vocabulary.model"


@dataclass(frozen=True)
class TextParameters:
    """The ``data`` section of a definition.

    ``seed`` is the seed of sentences from the grammar. The file names, without their language, are
    those of real text.

    Raises StoreError for values that make no sense.
    """

    source: str
    vocabulary: int
    longest_tokens: int
    train_samples: int
    evaluation_samples: int
    seed: int = 20260101
    train_files: tuple[str, ...] = (grammar.TRAIN,)
    evaluation_files: tuple[str, ...] = (grammar.EVALUATION,)

    def __post_init__(self) -> None:
        if self.source not in (GRAMMAR, REAL):
            raise StoreError(f"data.source is {self.source!r}, expected {GRAMMAR} or {REAL}")
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
    def as_json(self) -> dict[str, Any]:
        """Return the parameters for the manifest."""
        made = {"seed": self.seed, "grammar_version": grammar.GENERATOR_VERSION}
        files = {
            "train_files": list(self.train_files),
            "evaluation_files": list(self.evaluation_files),
        }
        return {
            "generator_version": GENERATOR_VERSION,
            "source": self.source,
            "vocabulary": self.vocabulary,
            "longest_tokens": self.longest_tokens,
            "train_samples": self.train_samples,
            "evaluation_samples": self.evaluation_samples,
            **(made if self.source == GRAMMAR else files),
        }


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
    subwords: Any
    manifest: Manifest

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of token numbers up to END."""
        numbers = list(tokens)
        if END in numbers:
            numbers = numbers[: numbers.index(END)]
        known = [number for number in numbers if UNKNOWN < number < len(self.subwords)]
        text: str = self.subwords.decode(known)
        return text


# Datasets -----------------------------------------------------------------------------------------


def parameters_of(data: Mapping[str, Any]) -> TextParameters:
    """Parse the ``data`` section of a benchmark's definition.

    Raises StoreError for values that make no sense.
    """
    return TextParameters(**dataset.select_settings(GENERATOR, TextParameters, data))


def folder(data: Mapping[str, Any], data_root: Path) -> Path:
    """Return the folder of the dataset of a ``data`` section, prepared or not."""
    parameters = parameters_of(data)
    rows = parameters.train_samples + parameters.evaluation_samples
    title = f"{GENERATOR}-{parameters.source}-{rows}"
    return data_root / dataset.name_folder(title, parameters.as_json)


def find_distributed_files(folder: Path, parameters: TextParameters) -> Path | None:
    """Return the folder where a user puts the distributed files, or None if all is generated."""
    return folder.with_name(REAL) if parameters.source == REAL else None


def _find_source(folder: Path, parameters: TextParameters) -> Path:
    """Return the folder of the text that ``folder`` is made from."""
    generated = folder.with_name(f"{folder.name}-text")
    return find_distributed_files(folder, parameters) or generated


def prepare(
    folder: Path,
    parameters: TextParameters,
    processes: int | None = None,
    on_progress: OnProgress | None = None,
) -> Manifest:
    """Prepare the dataset in ``folder``; continue an interrupted one, or return if it is finished.

    Raises StoreError as ``preparation.prepare`` does, and where text is missing, is not UTF-8, has
    no translation line by line, or has fewer pairs than the definition uses.
    """
    if folder.exists():
        return dataset.read_existing(GENERATOR, folder, parameters.as_json)
    source = _find_source(folder, parameters)
    progress = partial(_split_progress, on_progress or (lambda done, total: None), parameters)
    if parameters.source == GRAMMAR:
        _write_text(source, parameters, processes, progress(0))
    parts = [
        parallel_text.open_corpus(source, parameters.train_files),
        parallel_text.open_corpus(source, parameters.evaluation_files),
    ]
    check_evaluation(parts[1], parameters.evaluation_samples)
    digests = [parallel_text.compute_digest(corpus) for corpus in parts]
    made_of = f"{GENERATOR_VERSION}-{parameters.vocabulary}-{digests[0][:8]}"
    vocabulary = folder.with_name(f"{GENERATOR}-vocabulary-{made_of}.model")
    train_vocabulary(vocabulary, parts[0], parameters.vocabulary)
    encoding = Encoding(vocabulary)
    lengths = [
        count_tokens(encoding, parts[0], parameters.longest_tokens, processes, progress(1)),
        count_tokens(encoding, parts[1], None, processes, lambda done, total: None),
    ]
    rows = _Rows(encoding, tuple(parts), select_pairs(parts, lengths, parameters.train_samples))
    counted = [of[kept] for of, kept in zip(lengths, rows.kept, strict=True)]
    source_ends, target_ends = np.cumsum(np.concatenate(counted), axis=0).T * TOKEN.itemsize
    return preparation.prepare(
        folder,
        GENERATOR,
        {
            **parameters.as_json,
            "text_sha256": digests,
            "vocabulary_sha256": hashlib.sha256(vocabulary.read_bytes()).hexdigest(),
            "left_out": _count_left_out(lengths[0], parameters.train_samples),
            **locate_first_empty(parts[0], lengths[0]),
        },
        {
            "source": Ragged(np.ascontiguousarray(source_ends)),
            "target": Ragged(np.ascontiguousarray(target_ends)),
            "reference": Ragged(np.cumsum(rows.reference_bytes())),
        },
        len(rows),
        partial(_draw, rows),
        processes,
        progress(2),
        chunk_rows=PIECE,
        packages=("sentencepiece",),
        judge=partial(_add_vocabulary, vocabulary),
    )


def _count_left_out(lengths: np.ndarray, train_samples: int) -> dict[str, int]:
    """Count the training pairs (pairs, 2) that are not used, by reason; of all that are there."""
    counts = {
        "empty": int(np.count_nonzero(lengths == EMPTY) // 2),
        "too_long": int(np.count_nonzero(lengths == TOO_LONG) // 2),
    }
    surplus = len(lengths) - sum(counts.values()) - train_samples
    return {**counts, "not_needed": surplus} if surplus else counts


def load(folder: Path) -> Pairs:
    """Map a prepared dataset. Raises StoreError if it is missing, damaged or something else."""
    manifest = dataset.read_manifest(GENERATOR, folder)
    arrays, parameters = store.open_arrays(folder), manifest.parameters
    path = folder / VOCABULARY
    model = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(model).hexdigest() != parameters["vocabulary_sha256"]:
        raise StoreError(f"{path}: missing or damaged. Delete {folder} and prepare again.")
    source, target = (
        Tokens(np.asarray(arrays[name]).view(TOKEN), arrays[f"{name}_ends"] // TOKEN.itemsize)
        for name in ("source", "target")
    )
    ends, text = arrays["reference_ends"], np.asarray(arrays["reference"])
    train = parameters["train_samples"]
    references = [
        bytes(text[ends[row - 1] : ends[row]]).decode() for row in range(train, manifest.rows)
    ]
    return Pairs(
        train_samples=train,
        evaluation_samples=parameters["evaluation_samples"],
        source=source,
        target=target,
        references=tuple(references),
        subwords=sentencepiece.SentencePieceProcessor(model_proto=model),
        manifest=manifest,
    )


def remarks(folder: Path) -> list[str]:
    """Return remarks about a prepared dataset: lengths and the pairs that were left out."""
    pairs = load(folder)
    train, left_out = pairs.train_samples, pairs.manifest.parameters["left_out"]
    first = pairs.manifest.parameters.get("first_empty", "")
    lengths = np.stack([pairs.source.lengths, pairs.target.lengths])
    lines = [
        f"{len(pairs.subwords):,} subwords; tokens per sentence, en and de: "
        f"{lengths[0, :train].mean():.1f} and {lengths[1, :train].mean():.1f} to train; "
        f"the longest to evaluate has {lengths[:, train:].max()}"
    ]
    if any(left_out.values()):
        lines.append(
            f"training pairs left out: {left_out['empty']:,} with an empty side"
            f"{f' (the first: {first})' if first else ''}, "
            f"{left_out['too_long']:,} longer than {pairs.manifest.parameters['longest_tokens']}, "
            f"{left_out.get('not_needed', 0):,} after the first {train:,}"
        )
    return lines


# From text to numbers -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rows:
    """The pairs of both parts that are kept, by their numbers, in the order of the rows."""

    encoding: Encoding
    parts: tuple[Corpus, ...]
    kept: tuple[np.ndarray, ...]

    def __len__(self) -> int:
        return sum(map(len, self.kept))

    def read_pair(self, row: int) -> tuple[str, str]:
        train = len(self.kept[0])
        part, number = (0, row) if row < train else (1, row - train)
        return self.parts[part].read_pair(int(self.kept[part][number]))

    def reference_bytes(self) -> np.ndarray:
        """Return the bytes of each row's ``reference``; int64 (rows,)."""
        train = len(self.kept[0])
        sizes = np.zeros(len(self), np.int64)
        for row in range(train, len(self)):
            sizes[row] = len(self.read_pair(row)[1].encode())
        return sizes


def _write_text(
    folder: Path, parameters: TextParameters, processes: int | None, on_progress: OnProgress
) -> None:
    """Write files of sentences from the grammar; existing files are kept."""
    counts = {
        grammar.TRAIN: parameters.train_samples,
        grammar.EVALUATION: parameters.evaluation_samples,
    }
    done, total = 0, sum(counts.values())
    with preparation.explain_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for part, count in counts.items():
            paths = [folder / f"{part}.{language}" for language in LANGUAGES]
            if not all(path.exists() for path in paths):
                pieces = range(-(-count // PIECE))
                written: dict[int, list[tuple[str, str]]] = {}
                work = partial(_make_sentences, parameters.seed, part, count)
                for piece, pairs in map_in_processes(work, pieces, processes, folder):
                    written[piece] = pairs
                    on_progress(done + sum(map(len, written.values())), total)
                for side, path in enumerate(paths):
                    text = "".join(f"{pair[side]}\n" for p in pieces for pair in written[p])
                    atomic_write(path, text.encode())
            done += count


def _make_sentences(seed: int, part: str, count: int, piece: int) -> list[tuple[str, str]]:
    rows = range(piece * PIECE, min((piece + 1) * PIECE, count))
    return [grammar.make_pair(seed, part, row) for row in rows]


def _draw(rows: _Rows, numbers: range) -> dict[str, bytes]:
    """Return the stored arrays of some rows."""
    drawn: dict[str, list[bytes]] = {"source": [], "target": [], "reference": []}
    for row in numbers:
        first, second = rows.read_pair(row)
        drawn["source"].append(np.array(rows.encoding.encode(first), TOKEN).tobytes())
        drawn["target"].append(np.array(rows.encoding.encode(second), TOKEN).tobytes())
        drawn["reference"].append(second.encode() if row >= len(rows.kept[0]) else b"")
    return {name: b"".join(values) for name, values in drawn.items()}


def _add_vocabulary(vocabulary: Path, folder: Path) -> None:
    atomic_write(folder / VOCABULARY, vocabulary.read_bytes())


def _split_progress(on_progress: OnProgress, parameters: TextParameters, begun: int) -> OnProgress:
    """Return the progress of one third: text, counting tokens and packing count equally."""
    rows = parameters.train_samples + parameters.evaluation_samples
    return lambda done, total: on_progress(int((begun + done / total) / 3 * rows), rows)
