"""Words of both languages, which ``lexicon.yaml`` lists, and how they inflect."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

SIBILANTS = ("s", "ß", "z", "x", "sch")


@dataclass(frozen=True)
class Noun:
    """A noun of both languages.

    ``gender`` is m, f or n. A ``weak`` noun takes -(e)n in all singular cases but the first.
    """

    english: str
    english_plural: str
    gender: str
    german: str
    german_plural: str
    weak: bool = False

    def inflect(self, case: str, plural: bool) -> str:
        """Return the inflected word."""
        if plural:
            is_marked = case == "dative" and self.german_plural[-1] not in "ns"
            return self.german_plural + "n" * is_marked
        if self.weak:
            ending = "n" if self.german.endswith(("e", "er", "ar")) else "en"
            return self.german if case == "nominative" else self.german + ending
        if case == "genitive" and self.gender != "f":
            return self.german + ("es" if self.german.endswith(SIBILANTS) else "s")
        return self.german


@dataclass(frozen=True)
class Verb:
    """A verb in both languages.

    ``english`` are base, third person singular, past and participle. ``german`` are infinitive,
    third person singular, preterite and participle, without the separable ``prefix``. ``auxiliary``
    forms the perfect. ``case`` is the case of its only or direct object, if it has one, and
    ``objects`` the kinds of noun that the object may be.
    """

    english: tuple[str, str, str, str]
    german: tuple[str, str, str, str]
    prefix: str = ""
    auxiliary: str = "haben"
    case: str = ""
    objects: str = ""

    @property
    def infinitive(self) -> str:
        """The German infinitive with its prefix."""
        return self.prefix + self.german[0]

    @property
    def participle(self) -> str:
        """The German participle with its prefix."""
        return self.prefix + self.german[3]

    @property
    def infinitive_with_zu(self) -> str:
        """The German infinitive with *zu*, which stands after a separable prefix."""
        return f"{self.prefix}zu{self.german[0]}" if self.prefix else f"zu {self.german[0]}"


@dataclass(frozen=True)
class Adjective:
    """An adjective of both languages; German endings are added to ``stem``."""

    english: str
    german: str
    stem: str


_TEXT = Path(__file__).with_name("lexicon.yaml").read_text(encoding="utf-8")
_TABLES = {name: table.splitlines() for name, table in yaml.safe_load(_TEXT).items()}


def _list_nouns(table: str) -> tuple[Noun, ...]:
    rows = [line.split() for line in _TABLES[table]]
    return tuple(Noun(r[0], r[1], r[2], r[3], r[4], weak=r[5:] == ["weak"]) for r in rows)


def _list_verbs(table: str, case: str = "", objects: str = "") -> tuple[Verb, ...]:
    """List verbs with the usual case and kind of their objects."""
    return tuple(_parse_verb(line.split(), case, objects) for line in _TABLES[table])


def _parse_verb(row: list[str], case: str, objects: str) -> Verb:
    prefix, _, infinitive = row[4].rpartition("+")
    auxiliary = "sein" if "sein" in row[8:] else "haben"
    own = [word for word in row[8:] if word != "sein"]
    english, german = (row[0], row[1], row[2], row[3]), (infinitive, row[5], row[6], row[7])
    return Verb(english, german, prefix, auxiliary, case, own[0] if own else objects)


def _list_pairs(table: str) -> tuple[tuple[str, str], ...]:
    return tuple((english, german) for english, german in _split_lines(table))


def _list_triples(table: str) -> tuple[tuple[str, str, str], ...]:
    return tuple((first, second, third) for first, second, third in _split_lines(table))


def _split_lines(table: str) -> list[list[str]]:
    return [line.split("=") for line in _TABLES[table]]


PERSONS, THINGS, PLACES = map(_list_nouns, ("persons", "things", "places"))
NOUNS: Mapping[str, Sequence[Noun]] = {
    "person": PERSONS,
    "thing": THINGS,
    "place": PLACES,
    "any": PERSONS + THINGS + PLACES,
}
INTRANSITIVE, MOTION = map(_list_verbs, ("intransitive", "motion"))
TRANSITIVE = _list_verbs("transitive", "accusative", "thing")
DATIVE = _list_verbs("dative", "dative", "person")
DITRANSITIVE = _list_verbs("ditransitive", "accusative", "thing")
OF_CLAUSES, OF_INFINITIVES = map(_list_verbs, ("of_clauses", "of_infinitives"))
MODALS = _list_triples("modals")
ADJECTIVES = tuple(
    Adjective(english, german[0], german[-1]) for english, *german in _split_lines("adjectives")
)
TIMES, MANNERS, NUMBERS, CONJUNCTIONS, LOCATIONS = map(
    _list_pairs, ("times", "manners", "numbers", "conjunctions", "locations")
)
DIRECTIONS, COMPANIONS = map(_list_triples, ("directions", "companions"))
