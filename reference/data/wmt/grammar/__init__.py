"""English–German sentences made by a synchronous grammar: text for the mini scale.

A sentence is drawn once, as a tree without word order or inflection, and then put into words twice.
German inflects determiners, adjectives and nouns by gender, case and number; its finite verb stands
second in main clauses, whatever begins them, and last in subordinate ones, where separable verbs
are one word; participles and infinitives stand at the end; objects of some verbs are datives; what
is negated decides between *nicht* and *kein*; *know* is another verb before a clause than before a
noun. Word by word little of this comes out right (``tests/reference/data/wmt/test_grammar.py``).

Sentence ``i`` of a part is a function of (seed, part, i) only. A digest of the English sentence
says which part it may be in, so that no sentence to be evaluated is ever trained on.
"""

import hashlib
from collections.abc import Sequence

from cepheid.reference.data.wmt.grammar import in_english, in_german
from cepheid.reference.data.wmt.grammar.trees import Sentence, SentenceGenerator

VERSION = 2  # another one for every change that makes other sentences
TRAIN, EVALUATION = "train", "evaluation"
EVALUATION_SHARE = 16  # one sentence in so many is for evaluation only


def make_pair(seed: int, part: str, index: int) -> tuple[str, str]:
    """Return sentence ``index`` of a part in English and in German."""
    generator = SentenceGenerator(seed, part, index)
    while True:
        sentence = generator.draw_sentence()
        text = write_english(sentence)
        if find_part(text) == part:
            return text, write_german(sentence)


def find_part(text: str) -> str:
    """Return the part to which an English sentence belongs."""
    first_byte = hashlib.sha256(text.encode()).digest()[0]
    return TRAIN if first_byte % EVALUATION_SHARE else EVALUATION


def write_english(sentence: Sentence) -> str:
    """Return the sentence in English."""
    return _write_line(in_english.list_words(sentence))


def write_german(sentence: Sentence) -> str:
    """Return the sentence in German."""
    return _write_line(in_german.list_words(sentence))


def _write_line(words: Sequence[str]) -> str:
    """Join words to a line: single punctuation marks and a capital first letter."""
    text = " ".join(words).replace(" ,", ",").replace(",,", ",")
    for mark in ".?":
        text = text.replace(f", {mark}", mark).replace(f" {mark}", mark)
    return text[0].upper() + text[1:]
