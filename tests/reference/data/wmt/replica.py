"""A small replica of what WMT distributes: the same files in the same folders, as odd as those."""

from collections.abc import Sequence
from pathlib import Path

from cepheid.reference.data.wmt.grammar import EVALUATION, TRAIN, make_pair

EUROPARL = "training/europarl-v7.de-en"
COMMON_CRAWL = "commoncrawl.de-en"
NEWS_COMMENTARY = "training-parallel-nc-v11/news-commentary-v11.de-en"
NEWS_TEST = "dev/newstest2014-deen"
ODD_PAIRS: dict[str, Sequence[tuple[str, str]]] = {
    EUROPARL: [("", "(Beifall)"), ("(Applause)", ""), (" \u00a0 ", "Leer.")],
    COMMON_CRAWL: [
        ("A ★ star.", "Ein ★ Stern."),
        ("Возражения.", "Einwände."),
        ("Ten words " * 41, "Zehn Wörter."),
        ("Ten words.", "Viel " * 81),
        ("No.", "Das ist alles nicht wahr, " * 4),
        ("S&amp;P 500 | a\u2028line [sic]", "S&amp;P 500 | eine\u2028Zeile [sic]"),
    ],
    NEWS_COMMENTARY: [("The “quote”.", "Das „Zitat“.")],
}
KEPT_OF_ODD_PAIRS = 1
DROPPED = {"empty": 3, "many_words": 2, "uneven": 1, "not_latin_1": 3}
TEST_PAIRS = (
    ('He said: "Don\'t do it!"', 'Er sagte: "Tu\'s nicht!"'),
    ("A price of 5.3% (or €3)", "Ein Preis von 5,3 % (oder 3 €)"),
    ("Mr. Müller &amp; Söhne", "Hr. Müller &amp; Söhne"),
)


def write_replica(folder: Path, pairs_of_each: int, test_pairs: int) -> None:
    """Write the files of WMT16 that are used, and some others that are in the same archives.

    Each training file has so many sentences of the grammar and its odd ones between them; the test
    set has TEST_PAIRS and sentences of the grammar, ``test_pairs`` in all.
    """
    for place, (name, odd) in enumerate(ODD_PAIRS.items()):
        first = place * pairs_of_each
        pairs = [make_pair(7, TRAIN, first + number) for number in range(pairs_of_each)]
        for number, pair in enumerate(odd):
            pairs.insert(2 * number + 1, pair)
        for side, language in enumerate(("en", "de")):
            text = "\n".join(pair[side] for pair in pairs)
            _write(folder / f"{name}.{language}", text + "\n" * (name != COMMON_CRAWL))
    drawn = [make_pair(7, EVALUATION, row) for row in range(test_pairs - len(TEST_PAIRS))]
    for side, language in enumerate(("en", "de")):
        sentences = [pair[side] for pair in [*TEST_PAIRS, *drawn]]
        for kind in ("src", "ref"):
            _write(folder / f"{NEWS_TEST}-{kind}.{language}.sgm", _format(kind, sentences))
    _write(folder / "commoncrawl.fr-en.en", "not used\n")
    _write(folder / "commoncrawl.de-en.annotation", "not used\n")


def _format(kind: str, sentences: Sequence[str]) -> str:
    tag = f"{kind}set"
    lines = [f'<{tag} setid="newstest2014" srclang="any" trglang="de">']
    for first in range(0, len(sentences), 2):
        lines.append(f'<doc sysid="ref" docid="{first}" genre="news" origlang="en">\n<p>')
        for number, sentence in enumerate(sentences[first : first + 2], 1):
            lines.append(f'<seg id="{number}">{sentence}</seg>')
        lines.append("</p>\n</doc>")
    return "\n".join([*lines, f"</{tag}>", ""])


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
