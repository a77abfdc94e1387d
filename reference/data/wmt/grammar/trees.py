"""Sentences as trees, which say something without word order or inflection, drawn at random."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from cepheid.reference.data.random_streams import make_generator
from cepheid.reference.data.wmt.grammar import lexicon
from cepheid.reference.data.wmt.grammar.lexicon import Adjective, Noun, Verb

Item = TypeVar("Item")


@dataclass(frozen=True)
class Pronoun:
    """A pronoun: ``english`` subject and object, ``german`` nominative, accusative, dative."""

    english: tuple[str, str]
    german: tuple[str, str, str]
    person: int
    plural: bool


@dataclass(frozen=True)
class NounPhrase:
    """A noun with its determiner, adjectives, owner and relative clause.

    ``determiner`` is English and empty if there is none. A ``relative`` clause lacks the phrase
    itself: as its subject, or as its direct object if it has a subject.
    """

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
    """A clause: ``tense`` is present, past, perfect, future or an English modal verb.

    A clause that lacks the subject or an object that its verb needs is a relative clause.
    """

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
    """A sentence; ``front`` stands before the subject: time, place or nothing."""

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


class SentenceGenerator:
    """Draws trees; all choices come from one generator."""

    def __init__(self, seed: int, part: str, index: int) -> None:
        self._random = make_generator(seed, f"sentence of {part}", index)

    def choose(self, items: Sequence[Item]) -> Item:
        """Choose one of the items."""
        return items[int(self._random.random() * len(items))]

    def decide(self, probability: float) -> bool:
        """Return True with this probability."""
        return bool(self._random.random() < probability)

    def draw_sentence(self) -> Sentence:
        """Draw a statement, at times with a subordinate clause, or a question."""
        main = self.draw_clause(may_nest=True)
        if self.decide(0.1) and not main.content:
            return Sentence(main, is_question=True)
        front = ""
        if main.time and self.decide(0.4):
            front = "time"
        elif main.place and main.verb not in lexicon.MOTION and self.decide(0.3):
            front = "place"
        if self.decide(0.25) and not (main.content or main.purpose):
            conjunction, subordinate = self.choose(lexicon.CONJUNCTIONS), self.draw_clause()
            if self.decide(0.4):
                return Sentence(main, False, "", conjunction, subordinate, True)
            return Sentence(main, False, front, conjunction, subordinate)
        return Sentence(main, False, front)

    def draw_clause(self, may_nest: bool = False) -> Clause:
        """Draw a clause with a subject; it contains other clauses only if it ``may_nest``."""
        kind = self._random.random()
        subject = self.draw_nominal(may_nest)
        if kind < 0.08:
            return Clause(
                COPULA,
                self.choose(("present", "past")),
                subject,
                self.decide(0.2),
                predicate=self.choose(lexicon.ADJECTIVES),
            )
        if may_nest and kind < 0.18:
            verb, tense = (
                self.choose(lexicon.OF_CLAUSES),
                self.choose(("present", "past", "perfect")),
            )
            return Clause(verb, tense, subject, self.decide(0.1), content=self.draw_clause())
        if kind < 0.25:
            verb, tense = self.choose(lexicon.OF_INFINITIVES), self.choose(("present", "past"))
            return Clause(verb, tense, subject, self.decide(0.1), purpose=self.draw_bare_clause())
        return self.draw_bare_clause(subject, may_nest)

    def draw_bare_clause(self, subject: Nominal | None = None, may_nest: bool = False) -> Clause:
        """Draw a verb with its objects and adverbials."""
        tenses = (
            ("present",) * 3 + ("past",) * 2 + ("perfect", "future", self.choose(tuple(MODALS)))
        )
        tense = self.choose(tenses) if subject else "present"
        negated = subject is not None and self.decide(0.15)
        kind = self._random.random()
        direct: Nominal | None = None
        indirect: Nominal | None = None
        place = self.draw_location() if self.decide(0.2) else None
        if kind < 0.18:
            verb = self.choose(lexicon.INTRANSITIVE)
        elif kind < 0.28:
            verb = self.choose(lexicon.MOTION)
            place = Adverbial(*self.choose(lexicon.DIRECTIONS), self.draw_phrase("place"))
        elif kind < 0.4:
            verb, direct = self.choose(lexicon.DATIVE), self.draw_nominal(may_nest)
        elif kind < 0.55:
            verb, direct = self.choose(lexicon.DITRANSITIVE), self.draw_phrase("thing", may_nest)
            indirect = self.draw_nominal(False)
        else:
            verb = self.choose(lexicon.TRANSITIVE)
            is_person = verb.objects in ("person", "any") and self.decide(0.25)
            direct = (
                self.draw_nominal(False) if is_person else self.draw_phrase(verb.objects, may_nest)
            )
        companion = None
        if self.decide(0.1):
            companion = Adverbial(*self.choose(lexicon.COMPANIONS), self.draw_phrase("person"))
        return Clause(
            verb,
            tense,
            subject,
            negated,
            direct,
            indirect,
            time=self.choose(lexicon.TIMES) if subject and self.decide(0.25) else None,
            manner=self.choose(lexicon.MANNERS) if self.decide(0.12) else None,
            place=place,
            companion=companion,
        )

    def draw_location(self) -> Adverbial:
        """Draw an adverbial of place."""
        english, german = self.choose(lexicon.LOCATIONS)
        return Adverbial(english, german, "dative", self.draw_phrase("place"))

    def draw_nominal(self, may_nest: bool) -> Nominal:
        """Draw a person: a pronoun or a noun phrase."""
        return self.choose(PRONOUNS) if self.decide(0.25) else self.draw_phrase("person", may_nest)

    def draw_phrase(self, kind: str, may_nest: bool = False) -> NounPhrase:
        """Draw a noun with determiner, adjectives, owner and relative clause."""
        noun = self.choose(lexicon.NOUNS[kind])
        plural = self.decide(0.3)
        possessive, number = self.choose(tuple(POSSESSIVES)), self.choose(tuple(NUMBERS))
        singular = ("the",) * 5 + ("a",) * 3 + ("this", "every", possessive)
        in_plural = ("the",) * 4 + ("these", "", possessive, number)
        adjectives: tuple[Adjective, ...] = ()
        if self.decide(0.35):
            adjectives = (self.choose(lexicon.ADJECTIVES),)
            second = self.choose(lexicon.ADJECTIVES)
            if self.decide(0.2) and second != adjectives[0]:
                adjectives += (second,)
        owner = relative = None
        if may_nest and self.decide(0.08):
            owner = NounPhrase(self.choose(lexicon.PERSONS), "the", self.decide(0.2))
        elif may_nest and self.decide(0.12):
            relative = self.draw_relative_clause(kind)
        return NounPhrase(
            noun,
            self.choose(in_plural if plural else singular),
            plural,
            adjectives,
            owner,
            relative,
        )

    def draw_relative_clause(self, kind: str) -> Clause:
        """Draw a clause without subject for persons, else one without direct object."""
        tense = self.choose(("present", "past", "perfect"))
        if kind == "person" and self.decide(0.6):
            verb = self.choose(lexicon.TRANSITIVE)
            return Clause(verb, tense, None, direct=self.draw_phrase(verb.objects))
        verbs = [verb for verb in lexicon.TRANSITIVE if verb.objects in ("any", kind)]
        return Clause(self.choose(verbs), tense, self.draw_nominal(False))
