"""The English–German grammar: what it says, repeatably, and that words are not enough."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import pytest

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


@pytest.mark.parametrize(
    ("version", "in_german"),
    [(1, "Vergisst er?"), (2, "Vergisst er, einen alten Hund anzurufen?")],
)
def test_the_second_version_asks_the_whole_question(version: int, in_german: str) -> None:
    infinitive = Clause(verb("call"), "present", None, direct=A_DOG)
    forget = verb("forget", lexicon.OF_INFINITIVES)
    question = Sentence(Clause(forget, "present", PRONOUNS[1], purpose=infinitive), True)
    assert write_english(question) == "Does he forget to call an old dog?"
    assert write_german(question, version) == in_german


def test_versions_differ_in_questions_with_an_infinitive_alone() -> None:
    pairs = [(make_pair(1, TRAIN, i), make_pair(1, TRAIN, i, version=2)) for i in range(1000)]
    changed = [new for old, new in pairs if old != new]
    assert 0 < len(changed) < 20
    assert all(english.endswith("?") and " to " in english for english, _ in changed)
    assert all(", " in german for _, german in changed)


def test_a_sentence_is_a_function_of_seed_part_and_number() -> None:
    assert make_pair(1, TRAIN, 17) == make_pair(1, TRAIN, 17)
    assert (
        len(
            {
                make_pair(seed, part, i)
                for seed in (1, 2)
                for part in (TRAIN, EVALUATION)
                for i in (1, 2)
            }
        )
        == 8
    )


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
