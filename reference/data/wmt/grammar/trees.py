"""A sentence as a tree: what it says, without word order or inflection."""

from dataclasses import dataclass

from cepheid.reference.data.wmt.grammar import lexicon
from cepheid.reference.data.wmt.grammar.lexicon import Adjective, Noun, Verb


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
