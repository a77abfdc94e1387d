"""WMT16 as it is distributed: found, split into words, cleaned, merged, packed, written again."""

import io
import json
import os
import shutil
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cepheid.reference.data import verification, wmt
from cepheid.reference.data.sentences.batches import END, UNKNOWN, Pairs
from cepheid.reference.data.store import StoreError
from cepheid.reference.data.wmt import parallel_text
from cepheid.reference.data.wmt.grammar import TRAIN, make_pair
from cepheid.reference.data.wmt.parameters import MOSES, TextParameters
from tests import assert_raises
from tests.reference import Later, need
from tests.reference.data.wmt.replica import (
    COMMON_CRAWL,
    DROPPED,
    EUROPARL,
    KEPT_OF_ODD_PAIRS,
    NEWS_COMMENTARY,
    NEWS_TEST,
    ODD_PAIRS,
    TEST_PAIRS,
    write_replica,
)

need("sacremoses", "subword_nmt")
learn_bpe = Later("subword_nmt.learn_bpe")
moses = Later("cepheid.reference.data.wmt.moses")

NAMES = tuple(Path(name).name for name in (NEWS_COMMENTARY, EUROPARL, COMMON_CRAWL))
OF_EACH, TEST = 30, 8
ALL_KEPT = 3 * OF_EACH + KEPT_OF_ODD_PAIRS
ASKED = TextParameters(
    MOSES, 400, 400, train_samples=80, evaluation_samples=TEST, merges=150,
    train_files=NAMES, evaluation_files=(Path(NEWS_TEST).name,),
)  # fmt: skip


def prepare(root: Path, parameters: TextParameters = ASKED, processes: int = 1) -> Pairs:
    wmt.prepare(root / "packed", parameters, processes)
    return wmt.load(root / "packed")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("wmt16")
    write_replica(root / MOSES, OF_EACH, TEST)
    return root


@pytest.fixture(scope="module")
def pairs(root: Path) -> Pairs:
    return prepare(root)


# Words --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("language", "text", "words"),
    [
        ("en", "Mr. Smith doesn't.", "Mr. Smith doesn &apos;t ."),
        ("de", "Er ging z. B. am 3. Mai.", "Er ging z. B. am 3. Mai ."),
        ("de", '"Ja", sagt er (5,3 %).', "&quot; Ja &quot; , sagt er ( 5,3 % ) ."),
        ("en", "a|b [c] <d> &amp;", "a &#124; b &#91; c &#93; &lt; d &gt; &amp; amp ;"),
        ("en", " two\u2028lines\u00a0here ", "two lines here"),
    ],
)
def test_words_are_those_of_moses(language: str, text: str, words: str) -> None:
    """What ``tokenizer.perl -l`` prints for these lines."""
    assert moses.split_words(text, language) == words


@pytest.mark.parametrize("text", ['"Ja", sagt er (am 3. Mai).', "Sie kauft [zwei] Äpfel & Eier?"])
def test_words_are_joined_as_one_writes_them(text: str) -> None:
    assert moses.join_words(moses.split_words(text, "de").split(), "de") == text


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("a b", "c"), ""),
        (("a", ""), "empty"),
        (("a " * 80, "b " * 80), ""),
        (("a " * 81, "b " * 80), "many_words"),
        (("a " * 9, "b"), ""),
        (("b", "a " * 10), "uneven"),
        (("a ÿ", "ß"), ""),
        (("a", "„b"), "not_latin_1"),
    ],
)
def test_pairs_are_dropped_as_in_the_reference(words: tuple[str, str], reason: str) -> None:
    assert moses.find_reason(words, longest_words=80) == reason


# Merges -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def toy() -> Any:
    subwords = ("low", "lo@@", "w@@", "er", "e@@")
    return moses.Merges("#version: 0.2\nl o\nlo w</w>\ne r</w>\n", subwords)


def test_merges_are_those_by_hand_and_of_the_text_itself(
    toy: Any, root: Path, pairs: Pairs
) -> None:
    assert toy.split(["low", "lower"]) == ["low", "lo@@", "w@@", "er"]
    assert toy.encode("low lower x") == [4, 4 + 1, 4 + 2, 4 + 3, UNKNOWN]
    assert toy.decode([4, 5, 6, 7]) == "low lower"
    assert toy.decode([0, 1, 2, 3, 4, 99]) == "low", "numbers that are no subwords are left out"
    assert toy.decode([5]) == "lo"
    assert len(toy) == 9
    (folder,) = root.glob("WMT16-words-*")
    lines = [line for end in ("de", "en") for line in (folder / f"words.{end}").open()]
    learnt = io.StringIO()
    learn_bpe.learn_bpe(lines, learnt, ASKED.merges)
    vocabulary = json.loads((root / "packed" / "vocabulary.json").read_bytes())
    assert vocabulary["codes"] == learnt.getvalue()


# Preparation --------------------------------------------------------------------------------------


def test_counts_say_what_was_read_and_dropped(root: Path, pairs: Pairs) -> None:
    facts = pairs.manifest.parameters
    assert facts["lines"] == {Path(n).name: OF_EACH + len(odd) for n, odd in ODD_PAIRS.items()}
    left_out = facts["left_out"]
    assert left_out == {**DROPPED, "too_long": 0, "not_needed": ALL_KEPT - 80}
    assert 80 + sum(left_out.values()) == sum(facts["lines"].values())
    _, lines, reasons = wmt.remarks(root / "packed")
    assert "36 in commoncrawl.de-en" in lines
    assert "3 with an empty side, 2 with more than 80 words, 1 with many more words on" in reasons
    assert "3 with letters that latin-1 lacks" in reasons


def wmt_line(name: str, number: int) -> str:
    return make_pair(7, TRAIN, list(ODD_PAIRS).index(name) * OF_EACH + number)[1]


def test_sentences_are_in_the_order_of_the_definition_and_references_as_written(
    pairs: Pairs,
) -> None:
    assert pairs.references[:3] == tuple(german for _, german in TEST_PAIRS)
    assert len(pairs.references) == TEST
    assert len(pairs.source.lengths) == 80 + TEST
    rows = range(80 + len(TEST_PAIRS), 80 + TEST)
    translated = [pairs.text(pairs.target.row(row).tolist()) for row in rows]
    assert translated == list(pairs.references[len(TEST_PAIRS) :])
    # Text of the first file comes first, so that what is not needed is the last file's.
    assert pairs.text(pairs.target.row(0).tolist()) == wmt_line(NEWS_COMMENTARY, 0)
    assert pairs.text(pairs.target.row(OF_EACH).tolist()) == wmt_line(EUROPARL, 0)


def test_the_vocabulary_has_the_most_frequent_subwords_first(root: Path, pairs: Pairs) -> None:
    vocabulary = json.loads((root / "packed" / "vocabulary.json").read_bytes())
    subwords = vocabulary["subwords"]
    assert vocabulary["codes"].count("\n") == 151, "a line with the version, and the merges"
    assert len(subwords) == len(set(subwords)) <= 400 - moses.FIRST
    assert any(subword.endswith(moses.GOES_ON) for subword in subwords)
    counts = Counter(
        int(number)
        for row in range(80)
        for tokens in (pairs.source, pairs.target)
        for number in tokens.row(row)
        if number != END
    )
    assert min(counts) >= moses.FIRST, "a subword of the training text is unknown"
    assert counts[moses.FIRST] == max(counts.values())


def test_the_rarest_subwords_give_way_to_the_size(tmp_path: Path) -> None:
    write_replica(tmp_path / MOSES, OF_EACH, TEST)
    small = prepare(tmp_path, replace(ASKED, vocabulary=100))
    assert len(small.subwords) == 100
    numbers = np.concatenate([small.source.row(row) for row in range(80)])
    assert numbers.max() == 99
    assert 0 < np.count_nonzero(numbers == UNKNOWN) < 0.3 * len(numbers)


def test_pairs_with_many_tokens_are_not_trained_on(tmp_path: Path) -> None:
    write_replica(tmp_path / MOSES, OF_EACH, TEST)
    short = prepare(tmp_path, replace(ASKED, longest_tokens=30, train_samples=20))
    longest = np.maximum(short.source.lengths, short.target.lengths)
    assert longest[:20].max() <= 30 < longest[20:].max()
    assert short.manifest.parameters["left_out"]["too_long"] > 0


def test_fewer_pairs_than_defined_are_used_and_frozen_by_their_number(tmp_path: Path) -> None:
    """Nobody has counted WMT: what is left runs, and has the digest that its number would give."""
    write_replica(tmp_path / MOSES, OF_EACH, TEST)
    left = prepare(tmp_path, replace(ASKED, train_samples=ALL_KEPT + 2))
    assert (left.train_samples, len(left.source.lengths)) == (ALL_KEPT, ALL_KEPT + TEST)
    assert prepare(tmp_path, replace(ASKED, train_samples=ALL_KEPT + 2)).manifest == left.manifest
    wmt.prepare(tmp_path / "frozen", replace(ASKED, train_samples=ALL_KEPT), 1)
    assert wmt.load(tmp_path / "frozen").manifest.digest == left.manifest.digest


def test_a_folder_that_cannot_be_read_is_told_not_a_missing_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / MOSES / "training").mkdir(parents=True)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "training")
    assert_raises(StoreError, "training: cannot be read; fix: ask its owner", prepare, tmp_path)


def test_too_few_lines_and_an_incomplete_test_set_are_told_before_the_work(tmp_path: Path) -> None:
    write_replica(tmp_path / MOSES, OF_EACH, TEST)
    many, lines = (
        replace(ASKED, train_samples=200),
        r"100 training pairs \(.*the definition uses 200",
    )
    assert_raises(StoreError, lines, prepare, tmp_path, many)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".packed.lock", MOSES]
    shutil.rmtree(tmp_path / MOSES)
    write_replica(tmp_path / MOSES, OF_EACH, TEST - 1)
    incomplete = r"7 pairs to evaluate, .* evaluation_samples: 8"
    assert_raises(StoreError, incomplete, prepare, tmp_path)
    assert not list(tmp_path.glob("WMT16-words-*/words.*"))


def test_everyone_has_the_same_bytes(
    tmp_path: Path, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the archives were unpacked, and wherever the preparation was interrupted."""
    write_replica(tmp_path / "unpacked", OF_EACH, TEST)
    flat = tmp_path / MOSES
    flat.mkdir()
    for path in (tmp_path / "unpacked").rglob("*.*"):
        if path.is_file() and path.suffix != ".annotation":
            path.rename(flat / path.name)
    monkeypatch.setattr("cepheid.reference.data.wmt.moses.PIECE", 25)
    calls = Counter[str]()

    def interrupt(step: str, on_call: int) -> None:
        module, name = f"cepheid.reference.data.wmt.{step}".rsplit(".", 1)
        original = getattr(__import__(module, fromlist=[name]), name)

        def stop(*arguments: object, **options: object) -> object:
            calls[step] += 1
            if calls[step] == on_call:
                raise InterruptedError
            return original(*arguments, **options)

        monkeypatch.setattr(f"{module}.{name}", stop)

    interrupt("moses._split_piece", 3)
    interrupt("moses._join_pieces", 1)
    interrupt("moses.learn_bpe", 1)
    interrupt("packing.select_pairs", 1)
    for _ in range(4):
        with pytest.raises(InterruptedError):
            prepare(tmp_path)
    assert prepare(tmp_path).manifest.digest == pairs.manifest.digest
    assert calls["moses._split_piece"] == 5, "a piece that was done is done again"
    assert verification.verify(tmp_path / "packed").digest == pairs.manifest.digest


def test_changed_files_are_read_anew(tmp_path: Path, pairs: Pairs) -> None:
    write_replica(tmp_path / MOSES, OF_EACH, TEST)
    path = tmp_path / MOSES / f"{COMMON_CRAWL}.de"
    before = path.read_text()
    path.write_text(before.replace("Hund", "Pudel"))
    assert prepare(tmp_path).manifest.digest != pairs.manifest.digest
    assert len(list(tmp_path.glob("WMT16-words-*"))) == 1
    path.write_text(before)
    parallel_text._map_file.cache_clear()
    parallel_text._find_line_ends.cache_clear()
    wmt.prepare(tmp_path / "again", ASKED, 1)
    assert wmt.load(tmp_path / "again").manifest.digest == pairs.manifest.digest


remove = Path.unlink
empty = partial(Path.write_text, data="<refset></refset>")


def shorten(path: Path) -> None:
    path.write_text(path.read_text().partition("</doc>")[0])


def copy(path: Path) -> None:
    (path.parent / "again").mkdir()
    (path.parent / "again" / path.name).write_bytes(path.read_bytes())


def spoil(path: Path) -> None:
    path.write_bytes(b"<seg>\xe4</seg>")


@pytest.mark.parametrize(
    ("change", "name", "message"),
    [
        (remove, f"{EUROPARL}.en", r"europarl-v7\.de-en\.en: there is no such file, nor .* Unpack"),
        (remove, f"{EUROPARL}.de", r"training/europarl-v7\.de-en\.de: cannot be read"),
        (remove, f"{NEWS_TEST}-ref.de.sgm", r"newstest2014-deen-ref\.de\.sgm: there is no such"),
        (copy, f"{COMMON_CRAWL}.en", r"two files of one name\. Keep one"),
        (shorten, f"{NEWS_TEST}-ref.de.sgm", r"has 8 segments, .*ref\.de\.sgm has 2: expected one"),
        (spoil, f"{NEWS_TEST}-src.en.sgm", r"src\.en\.sgm: byte 6 is no UTF-8 \(0xe4\)"),
        (empty, f"{NEWS_TEST}-ref.de.sgm", r"ref\.de\.sgm: there are no segments"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_files_is_told(
    tmp_path: Path, change: object, name: str, message: str
) -> None:
    write_replica(tmp_path / MOSES, OF_EACH, TEST)
    assert callable(change)
    change(tmp_path / MOSES / name)
    assert_raises(StoreError, message, prepare, tmp_path)
    assert not (tmp_path / "packed").exists()


@pytest.mark.parametrize("changes", [{"merges": 0}, {"longest_words": 0}, {"source": "WMT17"}])
def test_settings_that_make_no_sense(changes: dict[str, Any]) -> None:
    assert_raises(StoreError, r"data\.merges and longest_words are", replace, ASKED, **changes)
