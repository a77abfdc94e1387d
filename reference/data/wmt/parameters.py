"""Sentences in English and German as numbers of subwords.

Source
    Pairs of plain text files, see ``parallel_text``: for ``source: WMT17`` and ``WMT16`` those in
    the folder of that name under the data root, as distributed (statmt.org); for ``source:
    grammar`` files that ``drawn_text`` writes.

Cleaning
    White space is single spaces. Training pairs of which one side is empty, as some of WMT's are,
    or has more than ``longest_tokens`` tokens are left out; ``remarks`` counts them. In the
    evaluation set an empty side is an error: nothing of that set may be left out. What the grammar
    draws is cleaned in both parts, and of pairs with the same English
    sentence the first one is used. Of WMT16 further pairs are left out, see ``moses``.

Vocabulary
    One for both languages: byte-pair encoding (sentencepiece) of the training text, with one thread
    and without sampling, so that the same text gives the same vocabulary. Of more than
    VOCABULARY_PAIRS pairs it sees evenly spaced ones. WMT16 has merges of words instead.

Stored arrays
    ``source``, ``target``  ragged: token numbers, uint16, END at the end of each sentence
    ``reference``           ragged: the German text of pairs that are for evaluation, UTF-8

    Rows [0, train) are for training, the next ones for evaluation. The vocabulary is
    ``vocabulary.model`` or ``vocabulary.json`` beside them; its digest is a parameter in the
    manifest.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from cepheid.reference.data import dataset
from cepheid.reference.data.dataset import Opened
from cepheid.reference.data.sentences.batches import TOKEN, UNKNOWN, Pairs, Tokens
from cepheid.reference.data.store import StoreError
from cepheid.reference.data.wmt.grammar import EVALUATION, TRAIN, VERSION
from cepheid.reference.data.wmt.vocabulary import MERGES_SUFFIX, MODEL_SUFFIX, parse_subwords

GRAMMAR, REAL, MOSES = "grammar", "WMT17", "WMT16"
REASONS = {  # why training pairs are left out, as ``remarks`` says it
    "empty": "with an empty side{first}",
    "many_words": "with more than {longest_words} words",
    "uneven": "with many more words on one side",
    "not_latin_1": "with letters that latin-1 lacks",
    "too_long": "longer than {longest_tokens}",
    "repeated": "repeated",
    "not_needed": "after the first {train_samples:,}",
}


@dataclass(frozen=True)
class TextParameters(dataset.Parameters):
    """The ``data`` section of a definition.

    ``seed`` and ``grammar``, its version, are those of sentences from the grammar. The file names,
    without their language, are those of real text. Text whose words Moses splits has ``merges``
    and at most ``longest_words`` on a side.
    """

    generator = "wmt"
    recorded = ("source", "vocabulary", "longest_tokens", "train_samples", "evaluation_samples")
    sources = (GRAMMAR, REAL, MOSES)
    distributed = (REAL, MOSES)
    is_named_by_source = True

    source: str
    vocabulary: int
    longest_tokens: int
    train_samples: int
    evaluation_samples: int
    seed: int = 20260101
    grammar: int = VERSION
    merges: int = 0
    longest_words: int = 80
    is_subset: bool = False
    train_files: tuple[str, ...] = (TRAIN,)
    evaluation_files: tuple[str, ...] = (EVALUATION,)

    def __post_init__(self) -> None:
        self.check_source(joint=", ")
        if (self.source == MOSES) != (self.merges > 0) or self.longest_words < 1:
            raise StoreError(
                f"data.merges and longest_words are {self.merges} and {self.longest_words}: "
                f"expected 1 or more, and merges for {MOSES} alone"
            )
        if self.grammar != VERSION:
            raise StoreError(f"data.grammar is {self.grammar!r}, expected {VERSION}")
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
    def may_have_fewer(self) -> bool:
        """Whether fewer pairs may be left after cleaning than asked for, which nobody counted."""
        return self.source in self.distributed

    def describe(self) -> dict[str, Any]:
        """Return what decides the text."""
        if self.source == GRAMMAR:
            return {"seed": self.seed, "grammar_version": self.grammar}
        files: dict[str, Any] = {
            "train_files": list(self.train_files),
            "evaluation_files": list(self.evaluation_files),
        }
        if self.source == MOSES:
            files |= {"merges": self.merges, "longest_words": self.longest_words}
        return files


def name_vocabulary(source: str) -> str:
    """Return the name of the file with the vocabulary of text from ``source``."""
    return f"vocabulary{MERGES_SUFFIX if source == MOSES else MODEL_SUFFIX}"


def open_pairs(opened: Opened) -> Pairs:
    """Open the dataset. Raises StoreError if its vocabulary is missing or damaged."""
    arrays, parameters = opened.arrays, opened.manifest.parameters
    path = opened.folder / name_vocabulary(parameters["source"])
    model = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(model).hexdigest() != parameters["vocabulary_sha256"]:
        raise StoreError(f"{path}: missing or damaged. Delete {opened.folder} and prepare again.")
    source, target = (
        Tokens(np.asarray(arrays[name]).view(TOKEN), arrays[f"{name}_ends"] // TOKEN.itemsize)
        for name in ("source", "target")
    )
    ends, text = arrays["reference_ends"], np.asarray(arrays["reference"])
    train = parameters["train_samples"]
    references = [
        bytes(text[ends[row - 1] : ends[row]]).decode()
        for row in range(train, opened.manifest.rows)
    ]
    return Pairs(
        **opened.splits,
        source=source,
        target=target,
        references=tuple(references),
        subwords=parse_subwords(path.name, model),
        manifest=opened.manifest,
    )


def remark(pairs: Pairs) -> list[str]:
    """Return remarks about a prepared dataset: lengths and the pairs that were left out."""
    parameters, train = pairs.manifest.parameters, pairs.train_samples
    first = f" (the first: {parameters['first_empty']})" if "first_empty" in parameters else ""
    lengths = np.stack([pairs.source.lengths, pairs.target.lengths])
    lines = [
        f"{len(pairs.subwords):,} subwords; tokens per sentence, en and de: "
        f"{lengths[0, :train].mean():.1f} and {lengths[1, :train].mean():.1f} to train; "
        f"the longest to evaluate has {lengths[:, train:].max()}"
    ]
    if parameters.get("lines"):
        counts = ", ".join(f"{count:,} in {name}" for name, count in parameters["lines"].items())
        lines.append(f"lines read: {counts}")
    if any(parameters["left_out"].values()):
        reasons = (
            f"{parameters['left_out'][reason]:,} {text.format_map({**parameters, 'first': first})}"
            for reason, text in REASONS.items()
            if reason in parameters["left_out"]
        )
        lines.append(f"training pairs left out: {', '.join(reasons)}")
    return lines
