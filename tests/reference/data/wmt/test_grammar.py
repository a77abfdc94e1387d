"""The English–German grammar: what it says, repeatably; enough short and different sentences."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cepheid.reference.data import wmt
from cepheid.reference.data.sentences.batches import Pairs
from cepheid.reference.data.store import StoreError
from cepheid.reference.data.wmt.cleaning import REPEATED, mark_repeated
from cepheid.reference.data.wmt.grammar import (
    EVALUATION,
    TRAIN,
    lexicon,
    make_pair,
    write_english,
    write_german,
)
from cepheid.reference.data.wmt.grammar.lexicon import Adjective, Noun, Verb
from cepheid.reference.data.wmt.grammar.trees import (
    PRONOUNS,
    Adverbial,
    Clause,
    NounPhrase,
    Sentence,
)
from cepheid.reference.data.wmt.parallel_text import open_corpus
from cepheid.reference.data.wmt.parameters import TextParameters

PAIRS, EM_ROUNDS = 1500, 4


def noun(word: str) -> Noun:
    return next(noun for noun in lexicon.NOUNS["any"] if noun.english == word)


def verb(word: str, among: Sequence[Verb] = lexicon.TRANSITIVE) -> Verb:
    return next(verb for verb in among if verb.english[0] == word)


def adjective(word: str) -> Adjective:
    return next(a for a in lexicon.ADJECTIVES if a.english == word)


THE_MAN = NounPhrase(noun("man"), "the", False)
A_DOG = NounPhrase(noun("dog"), "a", False, (adjective("old"),))
TODAY = ("today", "heute")
CALLS = Clause(verb("call"), "present", THE_MAN, direct=A_DOG)


@pytest.mark.parametrize(
    ("sentence", "in_english", "in_german"),
    [
        (
            Sentence(CALLS),
            "The man calls an old dog.",
            "Der Mann ruft einen alten Hund an.",
        ),
        (
            Sentence(
                Clause(verb("call"), "present", THE_MAN, direct=A_DOG, time=TODAY), front="time"
            ),
            "Today the man calls an old dog.",
            "Heute ruft der Mann einen alten Hund an.",
        ),
        (
            Sentence(Clause(verb("call"), "perfect", THE_MAN, direct=A_DOG, time=TODAY)),
            "The man has called an old dog today.",
            "Der Mann hat heute einen alten Hund angerufen.",
        ),
        (
            Sentence(CALLS, is_question=True),
            "Does the man call an old dog?",
            "Ruft der Mann einen alten Hund an?",
        ),
        (
            Sentence(Clause(verb("call"), "past", THE_MAN, True, direct=A_DOG)),
            "The man did not call an old dog.",
            "Der Mann rief keinen alten Hund an.",
        ),
        (
            Sentence(
                Clause(verb("help", lexicon.DATIVE), "can", PRONOUNS[0], True, direct=THE_MAN)
            ),
            "I can not help the man.",
            "Ich kann dem Mann nicht helfen.",
        ),
        (
            Sentence(
                Clause(verb("go", lexicon.MOTION), "past", PRONOUNS[4], place=Adverbial(
                    "into", "in", "accusative", NounPhrase(noun("forest"), "the", False))),
                False, "", ("because", "weil"), CALLS,
            ),
            "They went into the forest because the man calls an old dog.",
            "Sie gingen in den Wald, weil der Mann einen alten Hund anruft.",
        ),
        (
            Sentence(
                Clause(verb("sleep", lexicon.INTRANSITIVE), "present", THE_MAN),
                False, "", ("when", "wenn"), CALLS, True,
            ),
            "When the man calls an old dog, the man sleeps.",
            "Wenn der Mann einen alten Hund anruft, schläft der Mann.",
        ),
        (
            Sentence(
                Clause(verb("know", lexicon.OF_CLAUSES), "present", PRONOUNS[2], content=CALLS)
            ),
            "She knows that the man calls an old dog.",
            "Sie weiß, dass der Mann einen alten Hund anruft.",
        ),
        (
            Sentence(Clause(verb("try", lexicon.OF_INFINITIVES), "past", PRONOUNS[3],
                            purpose=Clause(verb("call"), "present", None, direct=A_DOG))),
            "We tried to call an old dog.",
            "Wir versuchten, einen alten Hund anzurufen.",
        ),
        (
            Sentence(Clause(verb("give", lexicon.DITRANSITIVE), "future",
                            NounPhrase(noun("woman"), "the", True, relative=Clause(
                                verb("see"), "perfect", None, direct=A_DOG)),
                            direct=NounPhrase(noun("apple"), "", True, (adjective("red"),)),
                            indirect=NounPhrase(noun("child"), "her", False))),
            "The women who have seen an old dog will give her child red apples.",
            "Die Frauen, die einen alten Hund gesehen haben, werden ihrem Kind rote Äpfel geben.",
        ),
    ],
)  # fmt: skip
def test_grammar(sentence: Sentence, in_english: str, in_german: str) -> None:
    assert write_english(sentence) == in_english
    assert write_german(sentence) == in_german


def test_a_question_is_asked_whole() -> None:
    infinitive = Clause(verb("call"), "present", None, direct=A_DOG)
    forget = verb("forget", lexicon.OF_INFINITIVES)
    question = Sentence(Clause(forget, "present", PRONOUNS[1], purpose=infinitive), True)
    assert write_english(question) == "Does he forget to call an old dog?"
    assert write_german(question) == "Vergisst er, einen alten Hund anzurufen?"


def test_nothing_that_is_evaluated_was_trained_on() -> None:
    trained = {make_pair(1, TRAIN, i)[0] for i in range(1000)}
    assert len(trained) > 950
    assert not trained & {make_pair(1, EVALUATION, i)[0] for i in range(200)}


def word_for_word(pairs: Sequence[tuple[str, str]], rounds: int) -> Mapping[str, str]:
    """The most likely German word of each English word: model 1 of Brown et al. 1993."""
    counts = _counts()
    likely: Mapping[str, Mapping[str, float]] = {}
    for _ in range(rounds):
        for sentence in pairs:
            from_words, to_words = (text.split() for text in sentence)
            for to in to_words:
                shares: list[float] = [
                    likely.get(word, {}).get(to, 1e-9) if likely else 1.0 for word in from_words
                ]
                whole = sum(shares)
                for word, share in zip(from_words, shares, strict=True):
                    counts[word][to] += share / whole
        totals = {word: sum(seen.values()) for word, seen in counts.items()}
        likely = {
            word: {to: count / totals[word] for to, count in seen.items() if count > 1e-3}
            for word, seen in counts.items()
        }
        counts = _counts()
    return {word: max(seen, key=lambda to: seen[to]) for word, seen in likely.items()}


def _counts() -> dict[str, dict[str, float]]:
    return defaultdict(lambda: defaultdict(float))


def word_for_word_bleu(pairs: int, rounds: int, sentences: int) -> float:
    """Of the evaluation set's first ``sentences``, with the dictionary of so many training pairs;
    benchmarks/transformer/README.md has the command and what it printed."""
    sacrebleu = pytest.importorskip("sacrebleu", reason="needs the extra translation")

    def split_words(text: str) -> str:
        return text.lower().replace(",", " ,").replace(".", " .").replace("?", " ?")

    trained = [tuple(map(split_words, make_pair(1, TRAIN, i))) for i in range(pairs)]
    dictionary = word_for_word([(first, second) for first, second in trained], rounds)
    evaluated = [tuple(map(split_words, make_pair(1, EVALUATION, i))) for i in range(sentences)]
    translated = [" ".join(dictionary.get(w, w) for w in source.split()) for source, _ in evaluated]
    references = [target for _, target in evaluated]
    score: float = sacrebleu.corpus_bleu(translated, [references], tokenize="intl").score
    return score


def test_word_for_word_is_far_from_a_translation() -> None:
    assert 2 < word_for_word_bleu(PAIRS, EM_ROUNDS, sentences=150) < 25


# Drawn text ---------------------------------------------------------------------------------------


SHORT = TextParameters("grammar", 250, 22, 40, 8, seed=5)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Pairs]:
    folder = tmp_path_factory.mktemp("short") / "packed"
    wmt.prepare(folder, SHORT, processes=1)
    return folder, wmt.load(folder)


def read_english(pairs: Pairs) -> list[str]:
    return [pairs.text(pairs.source.row(row).tolist()) for row in range(48)]


def test_as_many_short_pairs_as_asked_for_of_which_none_comes_twice(
    prepared: tuple[Path, Pairs],
) -> None:
    folder, pairs = prepared
    assert (pairs.train_samples, pairs.evaluation_samples, len(pairs.references)) == (40, 8, 8)
    assert len(pairs.source.lengths) == len(pairs.target.lengths) == 48
    rounds = sorted(path.name for path in folder.with_name("packed-text").glob("train-*.en"))
    assert len(rounds) > 1, "one round is enough, so the test shows nothing"
    left_out = pairs.manifest.parameters["left_out"]
    drawn = 40 + sum(left_out.values())
    assert drawn == 40 * len(rounds)
    assert left_out["too_long"] > left_out["empty"] == 0
    assert max(pairs.source.lengths.max(), pairs.target.lengths.max()) <= SHORT.longest_tokens
    assert len(set(read_english(pairs))) == 48
    # The vocabulary is made of a round of all lengths.
    first = (folder.with_name("packed-text") / "train-1.en").read_text().splitlines()
    assert len(first) == 40
    kept = set(read_english(pairs)[:40])
    assert 0 < sum(line in kept for line in first) < 40


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


def test_sentences_that_are_never_short_enough_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cepheid.reference.data.wmt.drawn_text.MOST_ROUNDS", 2)
    with pytest.raises(StoreError, match=r"0 of 80 sentences drawn for train .* uses 40\. Raise"):
        wmt.prepare(tmp_path / "packed", replace(SHORT, longest_tokens=2), processes=1)
