"""Sentences drawn at random, as trees."""

from collections.abc import Sequence
from typing import TypeVar

from reference.data.wmt.grammar import lexicon
from reference.data.wmt.grammar.lexicon import Adjective
from reference.data.wmt.grammar.trees import (
    COPULA,
    MODALS,
    NUMBERS,
    POSSESSIVES,
    PRONOUNS,
    Adverbial,
    Clause,
    Nominal,
    NounPhrase,
    Sentence,
)
from reference.run.seeding import make_generator

Item = TypeVar("Item")


class Drawn:
    """Draws trees; all choices come from one generator."""

    def __init__(self, seed: int, part: str, index: int) -> None:
        self._random = make_generator(seed, f"sentence of {part}", index)

    def one(self, items: Sequence[Item]) -> Item:
        """Choose one of the items."""
        return items[int(self._random.random() * len(items))]

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return bool(self._random.random() < probability)

    def sentence(self) -> Sentence:
        """Draw a statement, at times with a subordinate clause, or a question."""
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
        """Draw a clause with a subject; it contains other clauses only if it ``may_nest``."""
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
        """Draw a verb with its objects and adverbials."""
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
        """Draw an adverbial of place."""
        english, german = self.one(lexicon.LOCATIONS)
        return Adverbial(english, german, "dative", self.phrase("place"))

    def nominal(self, may_nest: bool) -> Nominal:
        """Draw a person: a pronoun or a noun phrase."""
        return self.one(PRONOUNS) if self.chance(0.25) else self.phrase("person", may_nest)

    def phrase(self, kind: str, may_nest: bool = False) -> NounPhrase:
        """Draw a noun with determiner, adjectives, owner and relative clause."""
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
        """Draw a clause without subject for persons, else one without direct object."""
        tense = self.one(("present", "past", "perfect"))
        if kind == "person" and self.chance(0.6):
            verb = self.one(lexicon.TRANSITIVE)
            return Clause(verb, tense, None, direct=self.phrase(verb.objects))
        verbs = [verb for verb in lexicon.TRANSITIVE if verb.objects in ("any", kind)]
        return Clause(self.one(verbs), tense, self.nominal(False))
