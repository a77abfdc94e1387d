"""Sentences of the second version of the grammar: short, different, and enough of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cepheid.reference.data import wmt
from cepheid.reference.data.sentences.batches import Pairs
from cepheid.reference.data.store import StoreError
from cepheid.reference.data.wmt.cleaning import REPEATED, mark_repeated
from cepheid.reference.data.wmt.parallel_text import open_corpus
from cepheid.reference.data.wmt.parameters import TextParameters

SHORT = TextParameters("grammar", 250, 22, 40, 8, seed=5, grammar=2)
TRANSFORMER = TextParameters("grammar", 300, 80, train_samples=60, evaluation_samples=9, seed=5)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Pairs]:
    folder = tmp_path_factory.mktemp("short") / "packed"
    wmt.prepare(folder, SHORT, processes=1)
    return folder, wmt.load(folder)


def read_english(pairs: Pairs) -> list[str]:
    return [pairs.text(pairs.source.row(row).tolist()) for row in range(48)]


def test_exactly_as_many_pairs_as_asked_for(prepared: tuple[Path, Pairs]) -> None:
    folder, pairs = prepared
    assert (pairs.train_samples, pairs.evaluation_samples, len(pairs.references)) == (40, 8, 8)
    assert len(pairs.source.lengths) == len(pairs.target.lengths) == 48
    rounds = sorted(path.name for path in folder.with_name("packed-text").glob("train-*.en"))
    assert len(rounds) > 1, "one round is enough, so the test shows nothing"
    left_out = pairs.manifest.parameters["left_out"]
    drawn = 40 + sum(left_out.values())
    assert drawn == 40 * len(rounds)
    assert left_out["too_long"] > left_out["empty"] == 0


def test_both_parts_are_short_and_no_sentence_comes_twice(prepared: tuple[Path, Pairs]) -> None:
    _, pairs = prepared
    assert max(pairs.source.lengths.max(), pairs.target.lengths.max()) <= SHORT.longest_tokens
    assert len(set(read_english(pairs))) == 48


def test_the_first_of_repeated_pairs_stays(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_text("A dog.\nA cat.\nA dog.\nA cow.\nA cat.\n")
    (tmp_path / "a.de").write_text("Ein Hund.\nKatze.\nHund.\nKuh.\nEine Katze.\n")
    lengths = np.array([[3, 3], [-2, -2], [3, 2], [3, 2], [3, 3]])
    marked = mark_repeated(open_corpus(tmp_path, ["a"]), lengths)
    assert marked[:, 0].tolist() == [3, -2, REPEATED, 3, 3]
    assert lengths[2, 0] == 3, "its argument was changed"


def test_an_interruption_changes_nothing(
    tmp_path: Path, prepared: tuple[Path, Pairs], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: object) -> None:
        raise InterruptedError

    for step in ("drawn_text.mark_repeated", "packing.select_pairs", "packing._draw"):
        with monkeypatch.context() as patch:
            patch.setattr(f"cepheid.reference.data.wmt.{step}", stop)
            with pytest.raises(InterruptedError):
                wmt.prepare(tmp_path / "packed", SHORT, processes=1)
    told: list[int] = []
    again = wmt.prepare(tmp_path / "packed", SHORT, 1, lambda done, total: told.append(done))
    assert again.digest == prepared[1].manifest.digest
    assert told == sorted(told)
    assert told[-1] == 48


def test_the_vocabulary_is_made_of_a_round_of_all_lengths(prepared: tuple[Path, Pairs]) -> None:
    folder, pairs = prepared
    first = (folder.with_name("packed-text") / "train-1.en").read_text().splitlines()
    assert len(first) == 40
    kept = set(read_english(pairs)[:40])
    assert 0 < sum(line in kept for line in first) < 40


def test_sentences_that_are_never_short_enough_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cepheid.reference.data.wmt.drawn_text.MOST_ROUNDS", 2)
    with pytest.raises(StoreError, match=r"0 of 80 sentences drawn for train .* uses 40\. Raise"):
        wmt.prepare(tmp_path / "packed", replace(SHORT, longest_tokens=2), processes=1)


def test_the_first_version_is_what_it_was(tmp_path: Path) -> None:
    """Definitions that do not name a version keep their data: see ``transformer``."""
    manifest = wmt.prepare(tmp_path / "packed", TRANSFORMER, processes=1)
    assert "repeated" not in manifest.parameters["left_out"]
    assert manifest.parameters["grammar_version"] == 1
    assert manifest.digest == "950494ab070e3b9f44a05f95d6f2793cbce36ba5685513dbd478fdcfda6de401"
