"""A tree put into English words."""

from cepheid.reference.data.wmt.grammar.trees import (
    COPULA,
    MODALS,
    Adverbial,
    Clause,
    Nominal,
    NounPhrase,
    Pronoun,
    Sentence,
)


def list_words(sentence: Sentence) -> list[str]:
    """Return the words of the sentence in English."""
    main = _write_clause(sentence.main, sentence.front, sentence.is_question)
    if sentence.conjunction and sentence.subordinate:
        words = [sentence.conjunction[0], *_write_clause(sentence.subordinate)]
        main = [*words, ",", *main] if sentence.subordinate_first else [*main, *words]
    return [*main, "?" if sentence.is_question else "."]


def _write_clause(clause: Clause, front: str = "", is_question: bool = False) -> list[str]:
    subject = _write_nominal(clause.subject, 0) if clause.subject else []
    auxiliary, verb = _write_verb(clause, is_question)
    negation = ["not"] if clause.negated else []
    rest = []
    if clause.predicate:
        rest.append(clause.predicate.english)
    for nominal in (clause.indirect, clause.direct):
        rest += _write_nominal(nominal, 1) if nominal else []
    place = _write_adverbial(clause.place)
    time = [clause.time[0]] if clause.time else []
    before = {"time": time, "place": place}.get(front, [])
    rest += _write_adverbial(clause.companion)
    rest += [] if front == "place" else place
    rest += [clause.manner[0]] if clause.manner else []
    rest += [] if front == "time" else time
    if clause.purpose:
        rest += ["to", *_write_infinitive(clause.purpose)]
    if clause.content:
        rest += ["that", *_write_clause(clause.content)]
    if is_question:
        return [*auxiliary, *subject, *negation, *verb, *rest]
    return [*before, *subject, *auxiliary, *negation, *verb, *rest]


def _write_verb(clause: Clause, is_question: bool) -> tuple[list[str], list[str]]:
    """Return the words before *not* and the words after it."""
    base, third, past, participle = clause.verb.english
    subject = clause.subject
    is_third = subject is None or (subject.person == 3 and not subject.plural)
    if clause.verb is COPULA:
        is_first = subject is not None and subject.person == 1 and not subject.plural
        if clause.tense == "past":
            return [past if is_third or is_first else "were"], []
        return ["am" if is_first else third if is_third else "are"], []
    if clause.tense == "perfect":
        return ["has" if is_third else "have"], [participle]
    if clause.tense == "future":
        return ["will"], [base]
    if clause.tense in MODALS:
        return [clause.tense], [base]
    if clause.negated or is_question:
        return ["did" if clause.tense == "past" else "does" if is_third else "do"], [base]
    return [], [past if clause.tense == "past" else third if is_third else base]


def _write_infinitive(clause: Clause) -> list[str]:
    base = clause.verb.english[0]
    objects = [n for n in (clause.indirect, clause.direct) if n]
    words = [base, *(word for nominal in objects for word in _write_nominal(nominal, 1))]
    words += _write_adverbial(clause.companion) + _write_adverbial(clause.place)
    return words + ([clause.manner[0]] if clause.manner else [])


def _write_adverbial(adverbial: Adverbial | None) -> list[str]:
    return [adverbial.english, *_write_nominal(adverbial.phrase, 1)] if adverbial else []


def _write_nominal(nominal: Nominal, role: int) -> list[str]:
    """Return the words of a nominal; ``role`` is 0 for a subject, 1 for an object."""
    if isinstance(nominal, Pronoun):
        return [nominal.english[role]]
    noun = nominal.noun.english_plural if nominal.plural else nominal.noun.english
    words = [*(adjective.english for adjective in nominal.adjectives), noun]
    determiner = nominal.determiner
    if determiner == "a" and words[0][0] in "aeiou":
        determiner = "an"
    words = [determiner, *words] if determiner else words
    if nominal.owner:
        words += ["of", *_write_nominal(nominal.owner, 1)]
    if nominal.relative:
        words += _write_relative(nominal, nominal.relative)
    return words


def _write_relative(phrase: NounPhrase, relative: Clause) -> list[str]:
    if relative.subject:
        return ["that", *_write_clause(relative)]
    agreeing = Clause(
        relative.verb, relative.tense, NounPhrase(phrase.noun, "the", phrase.plural),
        direct=relative.direct,
    )  # fmt: skip
    auxiliary, verb = _write_verb(agreeing, False)
    rest = _write_nominal(relative.direct, 1) if relative.direct else []
    return ["who", *auxiliary, *verb, *rest]
