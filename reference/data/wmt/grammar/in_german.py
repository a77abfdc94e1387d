"""A tree put into German words. Tables of endings have m, f, n and the plural, in this order."""

from collections.abc import Mapping, Sequence

from cepheid.reference.data.wmt.grammar.trees import (
    COPULA,
    LIKE_DIESER,
    LIKE_EIN,
    MODALS,
    NUMBERS,
    Adverbial,
    Clause,
    Nominal,
    NounPhrase,
    Pronoun,
    Sentence,
)

CASES = ("nominative", "accusative", "dative", "genitive")
PLURAL = "p"  # instead of a gender: German has one set of endings for all plurals
CONTRACTIONS = {"in dem": "im", "an dem": "am", "zu dem": "zum", "zu der": "zur", "bei dem": "beim"}

DEFINITE = {
    "nominative": ("der", "die", "das", "die"),
    "accusative": ("den", "die", "das", "die"),
    "dative": ("dem", "der", "dem", "den"),
    "genitive": ("des", "der", "des", "der"),
}
RELATIVE = {**DEFINITE, "dative": ("dem", "der", "dem", "denen")}
ENDINGS_LIKE_DIESER = {
    "nominative": ("er", "e", "es", "e"),
    "accusative": ("en", "e", "es", "e"),
    "dative": ("em", "er", "em", "en"),
    "genitive": ("es", "er", "es", "er"),
}
ENDINGS_LIKE_EIN = {
    **ENDINGS_LIKE_DIESER,
    "nominative": ("", "e", "", "e"),
    "accusative": ("en", "e", "", "e"),
}
WEAK_ADJECTIVE = {
    "nominative": ("e", "e", "e", "en"),
    "accusative": ("en", "e", "e", "en"),
    "dative": ("en",) * 4,
    "genitive": ("en",) * 4,
}
MIXED_ADJECTIVE = {
    **WEAK_ADJECTIVE,
    "nominative": ("er", "e", "es", "en"),
    "accusative": ("en", "e", "es", "en"),
}
STRONG_PLURAL_ADJECTIVE = {"nominative": "e", "accusative": "e", "dative": "en", "genitive": "er"}


def list_words(sentence: Sentence) -> list[str]:
    """Return the words of the sentence in German."""
    first: list[str] | None = None
    subordinate: list[str] = []
    if sentence.conjunction and sentence.subordinate:
        subordinate = [sentence.conjunction[1], *_write_verb_last(sentence.subordinate)]
        if sentence.subordinate_first:
            first, subordinate = [*subordinate, ","], []
    words = _write_verb_second(sentence.main, sentence.front, first, sentence.is_question)
    if sentence.is_question:
        words += _write_after_the_verb(sentence.main)
    words += [",", *subordinate] if subordinate else []
    return [*words, "?" if sentence.is_question else "."]


def _write_verb_second(
    clause: Clause, front: str, first: list[str] | None, is_question: bool
) -> list[str]:
    """Return the words of a main clause, whose finite verb is in second place.

    Before the verb stands ``first`` if it is given, else what ``front`` names, else the subject. In
    a question nothing stands before it, and what follows the verb is left to the caller.
    """
    finite, others = _write_verb(clause)
    if clause.verb.prefix and not others:
        others = [clause.verb.prefix]
    assert clause.subject
    subject = _write_nominal(clause.subject, "nominative")
    if is_question:
        return [finite, *subject, *_write_middle(clause), *others]
    if first is None and front == "time" and clause.time:
        first = [clause.time[1]]
    elif first is None and front == "place" and clause.place:
        first = _write_adverbial(clause.place)
    if first is None:
        words = [*subject, finite, *_write_middle(clause)]
    else:
        words = [*first, finite, *subject, *_write_middle(clause, without=front)]
    return [*words, *others, *_write_after_the_verb(clause)]


def _write_verb_last(clause: Clause) -> list[str]:
    finite, others = _write_verb(clause)
    if clause.verb.prefix and not others:
        finite = clause.verb.prefix + finite
    subject = _write_nominal(clause.subject, "nominative") if clause.subject else []
    return [*subject, *_write_middle(clause), *others, finite, *_write_after_the_verb(clause)]


def _write_after_the_verb(clause: Clause) -> list[str]:
    if clause.content:
        return [",", "dass", *_write_verb_last(clause.content)]
    if clause.purpose:
        return [",", *_write_middle(clause.purpose), clause.purpose.verb.infinitive_with_zu]
    return []


def _write_middle(clause: Clause, without: str = "") -> list[str]:
    """Return objects and adverbials, which stand between the two places of the verb.

    Pronouns come first, then time, datives before accusatives, negation, and the rest.
    """
    objects = []
    if clause.indirect:
        objects.append((clause.indirect, "dative"))
    if clause.direct:
        objects.append((clause.direct, clause.verb.case))
    words: list[str] = []
    for nominal, case in objects:
        if isinstance(nominal, Pronoun):
            words += _write_nominal(nominal, case)
    if clause.time and without != "time":
        words.append(clause.time[1])
    is_indefinite = isinstance(clause.direct, NounPhrase) and clause.direct.determiner in ("a", "")
    is_none = clause.negated and is_indefinite
    for nominal, case in objects:
        if isinstance(nominal, NounPhrase):
            words += _write_nominal(nominal, case, is_none and nominal is clause.direct)
    if clause.negated and not is_none:
        words.append("nicht")
    words += _write_adverbial(clause.companion)
    words += [clause.manner[1]] if clause.manner else []
    words += [clause.predicate.german] if clause.predicate else []
    return words + ([] if without == "place" else _write_adverbial(clause.place))


def _write_verb(clause: Clause) -> tuple[str, list[str]]:
    """Return the finite form without a separable prefix, and the words that end the clause."""
    subject, verb = clause.subject, clause.verb
    plural = subject is not None and subject.plural
    is_first = subject is not None and subject.person == 1 and not plural
    if clause.tense == "perfect":
        if verb.auxiliary == "sein":
            finite = "sind" if plural else "bin" if is_first else "ist"
        else:
            finite = "haben" if plural else "habe" if is_first else "hat"
        return finite, [verb.participle]
    if clause.tense == "future":
        return "werden" if plural else "werde" if is_first else "wird", [verb.infinitive]
    if clause.tense in MODALS:
        return MODALS[clause.tense][plural], [verb.infinitive]
    infinitive, third, past, _ = verb.german
    if clause.tense == "past":
        return past + ("n" if past.endswith("e") else "en") * plural, []
    if verb is COPULA:
        return "sind" if plural else "bin" if is_first else third, []
    if is_first:
        stem = infinitive.removesuffix("n").removesuffix("e")
        return third if third == "weiß" else stem + "e", []
    return infinitive if plural else third, []


def _write_adverbial(adverbial: Adverbial | None) -> list[str]:
    if not adverbial:
        return []
    words = _write_nominal(adverbial.phrase, adverbial.case)
    contracted = CONTRACTIONS.get(f"{adverbial.german} {words[0]}")
    return [contracted, *words[1:]] if contracted else [adverbial.german, *words]


def _write_nominal(nominal: Nominal, case: str, is_none: bool = False) -> list[str]:
    if isinstance(nominal, Pronoun):
        return [nominal.german[CASES.index(case)]]
    gender = PLURAL if nominal.plural else nominal.noun.gender
    determiner = nominal.determiner
    words, adjective_ending = _write_determiner("no" if is_none else determiner, case, gender)
    words += [adjective.stem + adjective_ending for adjective in nominal.adjectives]
    words.append(nominal.noun.inflect(case, nominal.plural))
    if nominal.owner:
        words += _write_nominal(nominal.owner, "genitive")
    if nominal.relative:
        words += _write_relative(gender, nominal.relative, nominal.plural)
    return words


def _write_determiner(determiner: str, case: str, gender: str) -> tuple[list[str], str]:
    """Return the determiner and the ending of the adjectives after it."""
    weak, mixed = WEAK_ADJECTIVE, MIXED_ADJECTIVE
    if determiner == "the":
        return [_find_ending(DEFINITE, case, gender)], _find_ending(weak, case, gender)
    if determiner in LIKE_DIESER:
        word = LIKE_DIESER[determiner] + _find_ending(ENDINGS_LIKE_DIESER, case, gender)
        return [word], _find_ending(weak, case, gender)
    if determiner in LIKE_EIN:
        word = LIKE_EIN[determiner] + _find_ending(ENDINGS_LIKE_EIN, case, gender)
        return [word], _find_ending(mixed, case, gender)
    number = [NUMBERS[determiner]] if determiner else []
    return number, STRONG_PLURAL_ADJECTIVE[case]


def _write_relative(gender: str, relative: Clause, plural: bool) -> list[str]:
    if relative.subject:
        pronoun = _find_ending(RELATIVE, relative.verb.case, gender)
        return [",", pronoun, *_write_verb_last(relative), ","]
    pronoun = _find_ending(RELATIVE, "nominative", gender)
    head = Pronoun(("", ""), (pronoun, "", ""), 3, plural)
    agreeing = Clause(relative.verb, relative.tense, head, direct=relative.direct)
    return [",", *_write_verb_last(agreeing), ","]


def _find_ending(table: Mapping[str, Sequence[str]], case: str, gender: str) -> str:
    """Return the entry for a gender or PLURAL."""
    return table[case]["mfnp".index(gender)]
