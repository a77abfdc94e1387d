"""English–German sentences made by a synchronous grammar: text for the mini scale.

A sentence is drawn once, as a tree without word order or inflection, and then put into words twice.
German inflects determiners, adjectives and nouns by gender, case and number; its finite verb stands
second in main clauses, whatever begins them, and last in subordinate ones, where separable verbs
are one word; participles and infinitives stand at the end; objects of some verbs are datives; what
is negated decides between *nicht* and *kein*; *know* is another verb before a clause than before a
noun. Word by word little of this comes out right (``tests/reference/data/test_grammar.py``).

Sentence ``i`` of a part is a function of (seed, part, i) only. A digest of the English sentence
says which part it may be in, so that no sentence to be evaluated is ever trained on.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from reference.data import lexicon
from reference.data.lexicon import PLURAL, Adjective, Noun, Verb, ending
from reference.seeding import generator

GENERATOR_VERSION = 1  # to be raised by every change that makes other sentences
TRAIN, EVALUATION = "train", "evaluation"
EVALUATION_SHARE = 16  # one sentence in so many is for evaluation only

Item = TypeVar("Item")


# Trees --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pronoun:
    """``english`` as subject and object, ``german`` as nominative, accusative, dative."""

    english: tuple[str, str]
    german: tuple[str, str, str]
    person: int
    plural: bool


@dataclass(frozen=True)
class NounPhrase:
    """``determiner`` is the English one, empty where there is none. A ``relative`` clause lacks the
    phrase itself: as its subject, or as its direct object if it has a subject."""

    noun: Noun
    determiner: str
    plural: bool
    adjectives: tuple[Adjective, ...] = ()
    owner: "NounPhrase | None" = None
    relative: "Clause | None" = None

    person = 3


Nominal = Pronoun | NounPhrase


@dataclass(frozen=True)
class Adverbial:
    """A preposition in both languages, and the case that the German one asks for."""

    english: str
    german: str
    case: str
    phrase: NounPhrase


@dataclass(frozen=True)
class Clause:
    """``tense`` is present, past, perfect, future or an English modal verb. Without a subject or an
    object where the verb asks for one it is the relative clause of that."""

    verb: Verb
    tense: str
    subject: Nominal | None
    negated: bool = False
    direct: Nominal | None = None
    indirect: Nominal | None = None
    predicate: Adjective | None = None
    time: tuple[str, str] | None = None
    manner: tuple[str, str] | None = None
    place: Adverbial | None = None
    companion: Adverbial | None = None
    content: "Clause | None" = None
    purpose: "Clause | None" = None


@dataclass(frozen=True)
class Sentence:
    """``front`` is what stands before the subject: time, place or nothing."""

    main: Clause
    is_question: bool = False
    front: str = ""
    conjunction: tuple[str, str] | None = None
    subordinate: Clause | None = None
    subordinate_first: bool = False


PRONOUNS = (
    Pronoun(("I", "me"), ("ich", "mich", "mir"), 1, False),
    Pronoun(("he", "him"), ("er", "ihn", "ihm"), 3, False),
    Pronoun(("she", "her"), ("sie", "sie", "ihr"), 3, False),
    Pronoun(("we", "us"), ("wir", "uns", "uns"), 1, True),
    Pronoun(("they", "them"), ("sie", "sie", "ihnen"), 3, True),
)
COPULA = Verb(("be", "is", "was", "been"), ("sein", "ist", "war", "gewesen"), auxiliary="sein")
POSSESSIVES = {"my": "mein", "his": "sein", "her": "ihr", "our": "unser", "their": "ihr"}
LIKE_EIN = {"a": "ein", "no": "kein", **POSSESSIVES}
LIKE_DIESER = {"this": "dies", "these": "dies", "every": "jed"}
NUMBERS = dict(lexicon.NUMBERS)
MODALS = {english: (singular, plural) for english, singular, plural in lexicon.MODALS}


# Drawing ------------------------------------------------------------------------------------------


class Drawn:
    """Draws trees; all choices come from one generator."""

    def __init__(self, seed: int, part: str, index: int) -> None:
        self._random = generator(seed, f"sentence of {part}", index)

    def one(self, items: Sequence[Item]) -> Item:
        return items[int(self._random.random() * len(items))]

    def chance(self, probability: float) -> bool:
        return bool(self._random.random() < probability)

    def sentence(self) -> Sentence:
        """Mostly statements, some with a subordinate clause, some questions."""
        main = self.clause(may_nest=True)
        if self.chance(0.1) and not main.content:
            return Sentence(main, is_question=True)
        front = ""
        if main.time and self.chance(0.4):
            front = "time"
        elif main.place and main.verb not in lexicon.MOTION and self.chance(0.3):
            front = "place"
        if self.chance(0.25) and not (main.content or main.purpose):
            conjunction, subordinate = self.one(lexicon.CONJUNCTIONS), self.clause()
            if self.chance(0.4):
                return Sentence(main, False, "", conjunction, subordinate, True)
            return Sentence(main, False, front, conjunction, subordinate)
        return Sentence(main, False, front)

    def clause(self, may_nest: bool = False) -> Clause:
        """With its subject; only one that ``may_nest`` has clauses within."""
        kind = self._random.random()
        subject = self.nominal(may_nest)
        if kind < 0.08:
            return Clause(
                COPULA,
                self.one(("present", "past")),
                subject,
                self.chance(0.2),
                predicate=self.one(lexicon.ADJECTIVES),
            )
        if may_nest and kind < 0.18:
            verb, tense = self.one(lexicon.OF_CLAUSES), self.one(("present", "past", "perfect"))
            return Clause(verb, tense, subject, self.chance(0.1), content=self.clause())
        if kind < 0.25:
            verb, tense = self.one(lexicon.OF_INFINITIVES), self.one(("present", "past"))
            return Clause(verb, tense, subject, self.chance(0.1), purpose=self.bare_clause())
        return self.bare_clause(subject, may_nest)

    def bare_clause(self, subject: Nominal | None = None, may_nest: bool = False) -> Clause:
        """A verb with its objects and adverbials."""
        tenses = ("present",) * 3 + ("past",) * 2 + ("perfect", "future", self.one(tuple(MODALS)))
        tense = self.one(tenses) if subject else "present"
        negated = subject is not None and self.chance(0.15)
        kind = self._random.random()
        direct: Nominal | None = None
        indirect: Nominal | None = None
        place = self.location() if self.chance(0.2) else None
        if kind < 0.18:
            verb = self.one(lexicon.INTRANSITIVE)
        elif kind < 0.28:
            verb = self.one(lexicon.MOTION)
            place = Adverbial(*self.one(lexicon.DIRECTIONS), self.phrase("place"))
        elif kind < 0.4:
            verb, direct = self.one(lexicon.DATIVE), self.nominal(may_nest)
        elif kind < 0.55:
            verb, direct = self.one(lexicon.DITRANSITIVE), self.phrase("thing", may_nest)
            indirect = self.nominal(False)
        else:
            verb = self.one(lexicon.TRANSITIVE)
            is_person = verb.objects in ("person", "any") and self.chance(0.25)
            direct = self.nominal(False) if is_person else self.phrase(verb.objects, may_nest)
        companion = None
        if self.chance(0.1):
            companion = Adverbial(*self.one(lexicon.COMPANIONS), self.phrase("person"))
        return Clause(
            verb,
            tense,
            subject,
            negated,
            direct,
            indirect,
            time=self.one(lexicon.TIMES) if subject and self.chance(0.25) else None,
            manner=self.one(lexicon.MANNERS) if self.chance(0.12) else None,
            place=place,
            companion=companion,
        )

    def location(self) -> Adverbial:
        english, german = self.one(lexicon.LOCATIONS)
        return Adverbial(english, german, "dative", self.phrase("place"))

    def nominal(self, may_nest: bool) -> Nominal:
        """Somebody."""
        return self.one(PRONOUNS) if self.chance(0.25) else self.phrase("person", may_nest)

    def phrase(self, kind: str, may_nest: bool = False) -> NounPhrase:
        """A noun with all that goes with it."""
        noun = self.one(lexicon.NOUNS[kind])
        plural = self.chance(0.3)
        possessive, number = self.one(tuple(POSSESSIVES)), self.one(tuple(NUMBERS))
        singular = ("the",) * 5 + ("a",) * 3 + ("this", "every", possessive)
        in_plural = ("the",) * 4 + ("these", "", possessive, number)
        adjectives: tuple[Adjective, ...] = ()
        if self.chance(0.35):
            adjectives = (self.one(lexicon.ADJECTIVES),)
            second = self.one(lexicon.ADJECTIVES)
            if self.chance(0.2) and second != adjectives[0]:
                adjectives += (second,)
        owner = relative = None
        if may_nest and self.chance(0.08):
            owner = NounPhrase(self.one(lexicon.PERSONS), "the", self.chance(0.2))
        elif may_nest and self.chance(0.12):
            relative = self.relative_clause(kind)
        return NounPhrase(
            noun,
            self.one(in_plural if plural else singular),
            plural,
            adjectives,
            owner,
            relative,
        )

    def relative_clause(self, kind: str) -> Clause:
        """One without subject for persons, else one without direct object."""
        tense = self.one(("present", "past", "perfect"))
        if kind == "person" and self.chance(0.6):
            verb = self.one(lexicon.TRANSITIVE)
            return Clause(verb, tense, None, direct=self.phrase(verb.objects))
        verbs = [verb for verb in lexicon.TRANSITIVE if verb.objects in ("any", kind)]
        return Clause(self.one(verbs), tense, self.nominal(False))


# English ------------------------------------------------------------------------------------------


def english(sentence: Sentence) -> str:
    """The sentence in English."""
    main = _english_clause(sentence.main, sentence.front, sentence.is_question)
    if sentence.conjunction and sentence.subordinate:
        words = [sentence.conjunction[0], *_english_clause(sentence.subordinate)]
        main = [*words, ",", *main] if sentence.subordinate_first else [*main, *words]
    return _written([*main, "?" if sentence.is_question else "."])


def _english_clause(clause: Clause, front: str = "", is_question: bool = False) -> list[str]:
    subject = _english_nominal(clause.subject, 0) if clause.subject else []
    auxiliary, verb = _english_verb(clause, is_question)
    negation = ["not"] if clause.negated else []
    rest = []
    if clause.predicate:
        rest.append(clause.predicate.english)
    for nominal in (clause.indirect, clause.direct):
        rest += _english_nominal(nominal, 1) if nominal else []
    place = _english_adverbial(clause.place)
    time = [clause.time[0]] if clause.time else []
    before = {"time": time, "place": place}.get(front, [])
    rest += _english_adverbial(clause.companion)
    rest += [] if front == "place" else place
    rest += [clause.manner[0]] if clause.manner else []
    rest += [] if front == "time" else time
    if clause.purpose:
        rest += ["to", *_english_infinitive(clause.purpose)]
    if clause.content:
        rest += ["that", *_english_clause(clause.content)]
    if is_question:
        return [*auxiliary, *subject, *negation, *verb, *rest]
    return [*before, *subject, *auxiliary, *negation, *verb, *rest]


def _english_verb(clause: Clause, is_question: bool) -> tuple[list[str], list[str]]:
    """What stands before *not*, and what after it."""
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


def _english_infinitive(clause: Clause) -> list[str]:
    base = clause.verb.english[0]
    objects = [n for n in (clause.indirect, clause.direct) if n]
    words = [base, *(word for nominal in objects for word in _english_nominal(nominal, 1))]
    words += _english_adverbial(clause.companion) + _english_adverbial(clause.place)
    return words + ([clause.manner[0]] if clause.manner else [])


def _english_adverbial(adverbial: Adverbial | None) -> list[str]:
    return [adverbial.english, *_english_nominal(adverbial.phrase, 1)] if adverbial else []


def _english_nominal(nominal: Nominal, role: int) -> list[str]:
    """``role`` is 0 for a subject, 1 for an object."""
    if isinstance(nominal, Pronoun):
        return [nominal.english[role]]
    noun = nominal.noun.english_plural if nominal.plural else nominal.noun.english
    words = [*(adjective.english for adjective in nominal.adjectives), noun]
    determiner = nominal.determiner
    if determiner == "a" and words[0][0] in "aeiou":
        determiner = "an"
    words = [determiner, *words] if determiner else words
    if nominal.owner:
        words += ["of", *_english_nominal(nominal.owner, 1)]
    if nominal.relative:
        words += _english_relative(nominal, nominal.relative)
    return words


def _english_relative(phrase: NounPhrase, relative: Clause) -> list[str]:
    if relative.subject:
        return ["that", *_english_clause(relative)]
    agreeing = Clause(
        relative.verb, relative.tense, NounPhrase(phrase.noun, "the", phrase.plural),
        direct=relative.direct,
    )  # fmt: skip
    auxiliary, verb = _english_verb(agreeing, False)
    rest = _english_nominal(relative.direct, 1) if relative.direct else []
    return ["who", *auxiliary, *verb, *rest]


# German -------------------------------------------------------------------------------------------


def german(sentence: Sentence) -> str:
    """The sentence in German."""
    first: list[str] | None = None
    subordinate: list[str] = []
    if sentence.conjunction and sentence.subordinate:
        subordinate = [sentence.conjunction[1], *_verb_last(sentence.subordinate)]
        if sentence.subordinate_first:
            first, subordinate = [*subordinate, ","], []
    words = _verb_second(sentence.main, sentence.front, first, sentence.is_question)
    words += [",", *subordinate] if subordinate else []
    return _written([*words, "?" if sentence.is_question else "."])


def _verb_second(
    clause: Clause, front: str, first: list[str] | None, is_question: bool
) -> list[str]:
    """``first`` stands before the verb if it is given; else what ``front`` says, else the
    subject; in a question nothing does."""
    finite, others = _german_verb(clause)
    if clause.verb.prefix and not others:
        others = [clause.verb.prefix]
    assert clause.subject
    subject = _german_nominal(clause.subject, "nominative")
    if is_question:
        return [finite, *subject, *_middle(clause), *others]
    if first is None and front == "time" and clause.time:
        first = [clause.time[1]]
    elif first is None and front == "place" and clause.place:
        first = _german_adverbial(clause.place)
    if first is None:
        words = [*subject, finite, *_middle(clause)]
    else:
        words = [*first, finite, *subject, *_middle(clause, without=front)]
    return [*words, *others, *_after_the_verb(clause)]


def _verb_last(clause: Clause) -> list[str]:
    finite, others = _german_verb(clause)
    if clause.verb.prefix and not others:
        finite = clause.verb.prefix + finite
    subject = _german_nominal(clause.subject, "nominative") if clause.subject else []
    return [*subject, *_middle(clause), *others, finite, *_after_the_verb(clause)]


def _after_the_verb(clause: Clause) -> list[str]:
    if clause.content:
        return [",", "dass", *_verb_last(clause.content)]
    if clause.purpose:
        return [",", *_middle(clause.purpose), clause.purpose.verb.infinitive_with_zu]
    return []


def _middle(clause: Clause, without: str = "") -> list[str]:
    """Objects and adverbials between the two places of the verb: pronouns first, then time, datives
    before accusatives, negation, the rest."""
    objects = []
    if clause.indirect:
        objects.append((clause.indirect, "dative"))
    if clause.direct:
        objects.append((clause.direct, clause.verb.case))
    words: list[str] = []
    for nominal, case in objects:
        if isinstance(nominal, Pronoun):
            words += _german_nominal(nominal, case)
    if clause.time and without != "time":
        words.append(clause.time[1])
    is_none = clause.negated and _is_indefinite(clause.direct)
    for nominal, case in objects:
        if isinstance(nominal, NounPhrase):
            words += _german_nominal(nominal, case, is_none and nominal is clause.direct)
    if clause.negated and not is_none:
        words.append("nicht")
    words += _german_adverbial(clause.companion)
    words += [clause.manner[1]] if clause.manner else []
    words += [clause.predicate.german] if clause.predicate else []
    return words + ([] if without == "place" else _german_adverbial(clause.place))


def _is_indefinite(nominal: Nominal | None) -> bool:
    return isinstance(nominal, NounPhrase) and nominal.determiner in ("a", "")


def _german_verb(clause: Clause) -> tuple[str, list[str]]:
    """The finite form without a separable prefix, and what stands at the end of the clause."""
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


def _german_adverbial(adverbial: Adverbial | None) -> list[str]:
    if not adverbial:
        return []
    words = _german_nominal(adverbial.phrase, adverbial.case)
    contracted = lexicon.CONTRACTIONS.get(f"{adverbial.german} {words[0]}")
    return [contracted, *words[1:]] if contracted else [adverbial.german, *words]


def _german_nominal(nominal: Nominal, case: str, is_none: bool = False) -> list[str]:
    if isinstance(nominal, Pronoun):
        return [nominal.german[lexicon.CASES.index(case)]]
    gender = PLURAL if nominal.plural else nominal.noun.gender
    determiner = nominal.determiner
    words, adjective_ending = _german_determiner("no" if is_none else determiner, case, gender)
    words += [adjective.stem + adjective_ending for adjective in nominal.adjectives]
    words.append(nominal.noun.in_german(case, nominal.plural))
    if nominal.owner:
        words += _german_nominal(nominal.owner, "genitive")
    if nominal.relative:
        words += _german_relative(gender, nominal.relative, nominal.plural)
    return words


def _german_determiner(determiner: str, case: str, gender: str) -> tuple[list[str], str]:
    """The determiner, and the ending that it leaves to adjectives."""
    weak, mixed = lexicon.WEAK_ADJECTIVE, lexicon.MIXED_ADJECTIVE
    if determiner == "the":
        return [ending(lexicon.DEFINITE, case, gender)], ending(weak, case, gender)
    if determiner in LIKE_DIESER:
        word = LIKE_DIESER[determiner] + ending(lexicon.LIKE_DIESER, case, gender)
        return [word], ending(weak, case, gender)
    if determiner in LIKE_EIN:
        word = LIKE_EIN[determiner] + ending(lexicon.LIKE_EIN, case, gender)
        return [word], ending(mixed, case, gender)
    number = [NUMBERS[determiner]] if determiner else []
    return number, lexicon.STRONG_PLURAL_ADJECTIVE[case]


def _german_relative(gender: str, relative: Clause, plural: bool) -> list[str]:
    if relative.subject:
        pronoun = ending(lexicon.RELATIVE, relative.verb.case, gender)
        return [",", pronoun, *_verb_last(relative), ","]
    pronoun = ending(lexicon.RELATIVE, "nominative", gender)
    head = Pronoun(("", ""), (pronoun, "", ""), 3, plural)
    agreeing = Clause(relative.verb, relative.tense, head, direct=relative.direct)
    return [",", *_verb_last(agreeing), ","]


def _written(words: Sequence[str]) -> str:
    """As a line of text: punctuation joined, never doubled, the first letter large."""
    text = " ".join(words).replace(" ,", ",").replace(",,", ",")
    for mark in ".?":
        text = text.replace(f", {mark}", mark).replace(f" {mark}", mark)
    return text[0].upper() + text[1:]


# Text ---------------------------------------------------------------------------------------------


def pair(seed: int, part: str, index: int) -> tuple[str, str]:
    """Sentence ``index`` of a part, in English and in German."""
    drawn = Drawn(seed, part, index)
    while True:
        sentence = drawn.sentence()
        text = english(sentence)
        if part_of(text) == part:
            return text, german(sentence)


def part_of(text: str) -> str:
    """The part in which an English sentence may be."""
    first_byte = hashlib.sha256(text.encode()).digest()[0]
    return TRAIN if first_byte % EVALUATION_SHARE else EVALUATION
