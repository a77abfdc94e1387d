"""Texts and tables that people read: they fit, and nothing of them is lost."""

import string

from hypothesis import given
from hypothesis import strategies as st

from cepheid.rules.layout import fill, lay_out, wrap

WORDS = st.text(string.ascii_letters + "/_-.", min_size=1, max_size=25)
CELLS = st.lists(WORDS, max_size=8).map(" ".join)
TABLES = st.integers(1, 9).flatmap(
    lambda columns: st.lists(
        st.lists(CELLS, min_size=columns, max_size=columns), min_size=1, max_size=5
    )
)


@given(TABLES, st.integers(60, 200))
def test_a_table_fits_and_keeps_every_word(rows: list[list[str]], width: int) -> None:
    lines = lay_out(rows, width)
    assert max(map(len, lines)) <= width
    told = " ".join(lines).split()
    assert {word for row in rows for cell in row for word in cell.split()} <= set(told)


@given(st.lists(CELLS, max_size=5).map("\n".join), st.integers(30, 200))
def test_a_text_fits_and_keeps_its_words_in_order(text: str, width: int) -> None:
    lines = wrap(text, width).split("\n")
    assert max(map(len, lines)) <= width
    assert " ".join(lines).split() == text.split()


def test_what_people_copy_stays_whole() -> None:
    for line in (f"{'folder/' * 20}file.txt", f"`cepheid check {'a/' * 50} --explain T8`"):
        assert line in wrap(f"{line}\nmore", 80)


def test_a_command_goes_on_behind_backslashes_explained_below() -> None:
    for line, lines in [
        ("  cepheid check results     a folder",
         ["  cepheid check \\", "      results", "      a folder"]),
        ("  cepheid check a b c d e f g", ["  cepheid check a \\", "      b c d e f g"]),
        ("pip install -e '.[a, b, c]'", ["pip install -e \\", "    '.[a, b, c]'"]),
        ("  make run RUNS=5       all that are missing",
         ["  make run RUNS=5", "      all that are", "      missing"]),
        ("make them, and show what it costs", ["make them, and show", "  what it costs"]),
    ]:  # fmt: skip
        assert wrap(line, 20).split("\n") == lines


def test_the_rest_of_a_line_stands_below_what_it_belongs_to() -> None:
    assert wrap("a.txt:3: T8.late it is late", 20) == "a.txt:3: T8.late it\n  is late"
    assert wrap("    expected eight words here", 20) == "    expected eight\n      words here"
    assert wrap("values:  one two three", 18) == "values:  one two\n         three"


def test_columns_that_do_not_fit_follow_below_with_their_names() -> None:
    rows = [["", "system", "first", "second"], ["1", "acme/box", "a" * 12, "b" * 12]]
    assert lay_out(rows, 30, keys=2) == [
        "   system    first", "-  --------  ------------", "1  acme/box  aaaaaaaaaaaa", "",
        "   system    second", "-  --------  ------------", "1  acme/box  bbbbbbbbbbbb",
    ]  # fmt: skip
    assert lay_out([["a", "b"], ["x" * 30, "1"]], 30) == [
        "a                            b", "---------------------------  -",
        "xxxxxxxxxxxxxxxxxxxxxxxxxxx  1", "xxx",
    ]  # fmt: skip


def test_markdown_is_filled_anew_and_its_tables_are_laid_out() -> None:
    text = (
        "T1 Form\n*Checked.* This line was broken at a hundred characters, which are too many,\n"
        "and goes on here.\n\n- an item\n- another\n\n| key | what |\n|---|---|\n| a | b |\nend"
    )
    assert fill(text, 60).split("\n") == [
        "T1 Form", "*Checked.* This line was broken at a hundred characters,",
        "which are too many, and goes on here.", "", "- an item", "- another", "", "key  what",
        "---  ----", "a    b", "end",
    ]  # fmt: skip
