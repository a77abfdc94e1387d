"""The engine of studies, with a study of two arms that measures nothing."""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import pytest

from cepheid.measure.engine import options, study
from cepheid.measure.engine.study import Column, Help, Measured, Request, Study
from cepheid.rules.errors import UserError
from cepheid.tools.console.arguments import make_study_parser

COLUMNS = (
    Column("name", lambda row: row[0]),
    Column("seconds", lambda row: row[1], "{:.2f}".format, head="time, s", axis="seconds"),
)
OTHER = Study("nothing", Help("", ""), (), lambda _: (), lambda *_: Measured(notes=["the other"]))


def measure(request: Request, arms: list[str]) -> Measured:
    rows = [(name, request.arguments.rounds or None) for name in arms]
    is_fine = "bad" not in arms
    return Measured(rows, "A title", notes=["a note"], facts={"rows": rows}, is_fine=is_fine)


def draw(path: Path, request: Request, measured: Measured) -> list[Path]:
    path.write_text(f"{len(measured.rows)} rows")
    return [path]


STUDY = Study(
    name="nothing",
    help=Help("It measures nothing.", "exit codes: 0 fine"),
    options=(
        options.Option("arms", {"nargs": "+"}),
        options.Option("--rounds", {"type": int, "default": 3}, least=3, why="for a spread"),
        options.Option("--share", {"type": float}, least=0, most=1),
        options.Option("--other", {"action": "store_true"}),
        options.offer_numbers("--sizes", {}, example="2,4", most=100),
        options.FIGURE,
        options.FILE,
    ),
    arms=lambda request: request.arguments.arms,
    measure=measure,
    columns=COLUMNS,
    figure=draw,
    others={"other": OTHER},
    is_timed=True,
)


def run(*arguments: object) -> bool:
    parsed: argparse.Namespace = make_study_parser(STUDY, "measure nothing").parse_args(
        [str(argument) for argument in arguments]
    )
    open_display: Any = None  # nothing shows progress here
    return study.run_study(STUDY, parsed, open_display)


def test_a_study_prints_writes_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (1000.0, 0.0, 0.0))
    out, figure = tmp_path / "new" / "out.json", tmp_path / "figure.png"
    assert run("a", "b", "--output", out, "--figure", figure)
    printed = capsys.readouterr().out
    assert printed.startswith("A title\n\nname    time, s\n")
    for text in (
        "\na       3.00\n",
        "\n\na note\n",
        "other work was running",
        f"written: {figure}",
    ):
        assert text in printed
    assert json.loads(out.read_text()) == {"rows": [["a", 3], ["b", 3]], "load_before": 1000}
    assert figure.read_text() == "2 rows"


def test_what_was_missed_is_a_finding_and_an_option_chooses_another_study(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert not run("bad")
    capsys.readouterr()
    assert run("bad", "--other")
    assert capsys.readouterr().out == "the other\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rounds", 2], "--rounds 2: expected 3 or more, for a spread"),
        (["--share", 1.5], "--share 1.5: expected 0 to 1"),
        (["--sizes", "2,x"], "--sizes 2,x: expected numbers up to 100 .* e.g. 2,4"),
        (["--sizes", "0"], "--sizes 0: expected numbers"),
        (["--sizes", "101"], "--sizes 101: expected numbers"),
        (["--figure", "/no/such/f.png"], "cannot write it, because /no/such is no folder; fix:"),
    ],
)
def test_wrong_use_is_refused_before_anything_is_measured(
    arguments: list[object], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=message):
        run("a", *arguments)
    assert capsys.readouterr().out == ""


def test_a_column_names_key_head_and_label() -> None:
    assert study.list_facts(COLUMNS, [("a", 1.5)]) == [{"name": "a", "seconds": 1.5}]
    assert study.find_label(COLUMNS, "seconds") == "seconds"
    empty = study.format_table(study.Table("", COLUMNS, [("a", None)]))
    assert empty.splitlines()[-1].split() == ["a"]
