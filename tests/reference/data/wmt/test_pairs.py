"""From text files to packed tokens, and what stands in the way."""

from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from cepheid.reference.data import verification, wmt
from cepheid.reference.data.sentences.batches import (
    AS_DRAWN,
    END,
    PADDING,
    Batches,
    BatchOrder,
    Pairs,
    Pass,
    pad,
    sort_by_length,
)
from cepheid.reference.data.store import StoreError
from cepheid.reference.data.wmt import parallel_text
from cepheid.reference.data.wmt.parameters import REAL, TextParameters

DRAWN = TextParameters("grammar", 300, 80, train_samples=60, evaluation_samples=9, seed=5)
GIVEN = replace(
    DRAWN, source=REAL, train_files=("one", "two"), evaluation_files=("test",), train_samples=6,
    evaluation_samples=2,
)  # fmt: skip
TEXT = {
    "one.en": "A dog.\nTwo  dogs.\n\nA cat sleeps.\n",
    "one.de": "Ein Hund.\nZwei Hunde.\nLeer.\nEine Katze schläft.\n",
    "two.en": "The man sees the dog.\nThe dog sleeps.\nThe woman laughs.",
    "two.de": "Der Mann sieht den Hund.\nDer Hund schläft.\nDie Frau lacht.",
    "test.en": "The man sleeps.\nA dog\u2028sees a cat.\n",
    "test.de": "Der Mann schläft.\nEin Hund sieht eine Katze.\n",
}


def write_text(root: Path, **changes: str | bytes) -> Path:
    """The files as distributed; a name has ``_`` for the dot."""
    source = root / REAL
    source.mkdir(parents=True)
    for name, text in {**TEXT, **{n.replace("_", "."): t for n, t in changes.items()}}.items():
        (source / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return source


def make_pairs(root: Path, parameters: TextParameters = DRAWN) -> Pairs:
    folder = root / "packed"
    wmt.prepare(folder, parameters, processes=1)
    return wmt.load(folder)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    return make_pairs(tmp_path_factory.mktemp("drawn"))


def test_tokens_say_what_the_files_say(tmp_path: Path) -> None:
    source = write_text(tmp_path)
    pairs = make_pairs(tmp_path, GIVEN)
    german = (source / "one.de").read_text() + (source / "two.de").read_text()
    kept = [line for line in german.splitlines() if line != "Leer."]
    assert [pairs.text(pairs.target.row(row).tolist()) for row in range(6)] == kept
    assert pairs.text(pairs.source.row(1).tolist()) == "Two dogs."
    assert pairs.text(pairs.source.row(7).tolist()) == "A dog sees a cat."
    assert pairs.references == ("Der Mann schläft.", "Ein Hund sieht eine Katze.")
    assert all(pairs.target.row(row)[-1] == END for row in range(8))
    assert pairs.manifest.parameters["left_out"] == {"empty": 1, "too_long": 0}
    assert (
        "1 with an empty side (the first: one.en, line 3)," in wmt.remarks(tmp_path / "packed")[1]
    )


def test_digest_does_not_depend_on_processes_or_interruptions(
    tmp_path: Path, drawn: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: object) -> None:
        raise InterruptedError

    for step in ("train_vocabulary", "_draw"):
        with monkeypatch.context() as patch:
            patch.setattr(f"cepheid.reference.data.wmt.packing.{step}", stop)
            with pytest.raises(InterruptedError):
                make_pairs(tmp_path)
    text = tmp_path / "packed-text" / "train-1.en"
    written_ns = text.stat().st_mtime_ns
    assert make_pairs(tmp_path).manifest.digest == drawn.manifest.digest
    assert text.stat().st_mtime_ns == written_ns, "text was written anew"
    assert verification.verify(tmp_path / "packed").digest == drawn.manifest.digest


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"one_de": "Ein Hund.\n"}, r"one\.en has 4 lines, .*one\.de has 1: .*Line 2"),
        ({"two_de": b"Der Mann.\nEr schl\xe4ft.\nDie Frau.\n"}, r"two\.de, line 2: byte 8.*0xe4"),
        ({"test_de": "Der Mann schläft.\n\n"}, r"WMT17/test\.de, line 2: it is empty"),
        ({"test_en": "\nA dog.\n"}, r"WMT17/test\.en, line 1: it is empty"),
        ({"two_en": ""}, r"two\.en: cannot be read \(it is empty\)"),
        (
            {"one_en": "A cat.\n", "one_de": "Eine Katze.\n"},
            r"4 training pairs \(1 in one, 3 in two\), but the definition uses 6",
        ),
        (
            {"one_en": "\n" * 4, "one_de": "\n" * 4, "two_en": "\n" * 3, "two_de": " \n" * 3},
            "all lines of the training text are empty",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_text_is_told(
    tmp_path: Path, changes: dict[str, str | bytes], message: str
) -> None:
    write_text(tmp_path, **changes)
    with pytest.raises(StoreError, match=message):
        make_pairs(tmp_path, GIVEN)
    assert not (tmp_path / "packed").exists()


def test_missing_text_and_a_small_or_damaged_vocabulary_are_told(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"WMT17/one\.en: cannot be read \(No such file"):
        make_pairs(tmp_path, GIVEN)
    write_text(tmp_path)
    with pytest.raises(StoreError, match=r"more different characters than the 12 tokens"):
        make_pairs(tmp_path, replace(GIVEN, vocabulary=12))
    make_pairs(tmp_path)
    (tmp_path / "packed" / "vocabulary.model").write_bytes(b"x")
    with pytest.raises(StoreError, match=r"vocabulary\.model: missing or damaged"):
        wmt.load(tmp_path / "packed")


def test_the_first_pairs_that_are_left_are_used(tmp_path: Path) -> None:
    """However many more there are; the vocabulary is made of all, and kept."""
    write_text(tmp_path)
    pairs = make_pairs(tmp_path, replace(GIVEN, train_samples=3))
    kept = [pairs.text(pairs.target.row(row).tolist()) for row in range(3)]
    assert kept == ["Ein Hund.", "Zwei Hunde.", "Eine Katze schläft."]
    assert pairs.manifest.parameters["left_out"] == {"empty": 1, "too_long": 0, "not_needed": 3}
    assert "3 after the first 3" in wmt.remarks(tmp_path / "packed")[1]
    (vocabulary,) = tmp_path.glob("*.model")
    written_ns = vocabulary.stat().st_mtime_ns
    wmt.prepare(tmp_path / "more", GIVEN, processes=1)
    assert vocabulary.stat().st_mtime_ns == written_ns
    assert list(tmp_path.glob("*.model")) == [vocabulary]


def test_long_pairs_are_left_out_of_training_only(tmp_path: Path) -> None:
    long = " ".join(["dog"] * 200)
    write_text(
        tmp_path,
        two_en=TEXT["two.en"] + f"\n{long}\n",
        two_de=TEXT["two.de"] + "\nHund.\n",
        test_en=f"{long}\nA cat.\n",
    )
    pairs = make_pairs(tmp_path, GIVEN)
    assert pairs.manifest.parameters["left_out"]["too_long"] == 1
    assert pairs.source.lengths[6] > GIVEN.longest_tokens


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "wmt"}, "grammar, WMT17, WMT16"),
        ({"vocabulary": 70_000}, "65,535"),
        ({"words": 1}, "words"),
        ({"grammar": 1}, r"data\.grammar is 1, expected 2"),
        ({"train_files": []}, r"data\.train_files is \[\], expected a list"),
        ({"evaluation_files": "test"}, r"data\.evaluation_files is 'test', expected a list"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense(changes: dict[str, object], message: str) -> None:
    asked = {"generator": "wmt", **DRAWN.as_json, **changes}
    asked = {key: value for key, value in asked.items() if not key.endswith("_version")}
    with pytest.raises(StoreError, match=message):
        wmt.parameters_of(asked)


# Batches -----------------------------------------------------------------------------------------


def batches(pairs: Pairs, rank: int = 0, world_size: int = 1) -> Batches:
    order = BatchOrder(pairs.lengths[: pairs.train_samples], 3, 16, AS_DRAWN)
    return Batches(pairs, order, rank, world_size)


def sentences(made: Batches, samples: int) -> list[tuple[int, ...]]:
    passes = made.make_batch(samples, 200).passes
    return sorted(tuple(row[row != PADDING]) for one in passes for row in one.target)


def test_ranks_share_a_batch_and_its_lengths(drawn: Pairs) -> None:
    whole = batches(drawn).make_batch(32, 200)
    for world_size in (2, 4):
        shares = [batches(drawn, rank, world_size) for rank in range(world_size)]
        parts = [sentences(share, 32) for share in shares]
        assert sorted(chain(*parts)) == sentences(batches(drawn), 32)
        assert {len(part) for part in parts} == {16 // world_size}
        totals = {share.make_batch(32, 200).target_tokens for share in shares}
        assert totals == {whole.target_tokens}
    assert whole.target_tokens == sum(one.target_tokens for one in whole.passes)


def test_passes_keep_to_their_budget_and_pad_little(drawn: Pairs) -> None:
    def places(one: Pass) -> int:
        return int(one.source.size + one.target.size)

    for samples in range(0, 160, 16):
        cut = batches(drawn).make_batch(samples, 200)
        assert all(places(one) <= 200 or len(one.source) == 1 for one in cut.passes)
        whole = batches(drawn).make_batch(samples, 100_000)
        assert len(whole.passes) == 1
        assert sum(map(places, cut.passes)) < 0.9 * places(whole.passes[0])


def test_lengths_rise_and_lines_end_at_line_feeds_alone(drawn: Pairs, tmp_path: Path) -> None:
    rows = sort_by_length(drawn.lengths, np.arange(60))
    lengths = [len(drawn.target.row(row)) for row in rows]
    assert lengths == sorted(lengths)
    one = pad(drawn, rows[[0, -1]])
    assert one.target.shape == (2, lengths[-1])
    assert one.target_tokens == lengths[0] + lengths[-1]
    corpus = parallel_text.open_corpus(write_text(tmp_path), ["test"])
    assert len(corpus) == 2
    assert corpus.read_pair(1)[0] == "A dog sees a cat."
