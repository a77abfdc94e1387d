"""What commands print fits 80 columns, but for a path or a command in a sentence that is longer."""

import re
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path

import pytest

from cepheid.compliance.report.rulebook import list_codes, read_rules
from cepheid.measure.engine import study
from cepheid.rules import definition
from cepheid.rules.layout import COLUMNS, WORD, wrap
from cepheid.tools import cli
from cepheid.tools.measure.__main__ import MEASUREMENTS
from tests.compliance.builder import write_result
from tests.compliance.mixed import write_mixed
from tests.processes import Line, run_lines

ROOT = Path(__file__).resolve().parents[3]
OURS = ROOT / "submissions/cepheid/results/2x-amd-epyc-zen4"
NAMES = definition.names()
HELP = [*cli.COMMANDS, *(f"measure {name}" for name in MEASUREMENTS)]
SHAPE = "galaxy_shape --scale mini"
LINES = [
    "--help", "--version", "measure --help", *(f"{command} --help" for command in HELP),
    "run --list",
    *(f"run {name} --list --scale {scale}" for name in NAMES for scale in definition.scales(name)),
    f"run {SHAPE} --output out --dry-run",
    "run resnet50 --output out --dry-run --ranks 64 --ranks-per-node 4",
    f"run {SHAPE} --output out --set lr=1", f"run {SHAPE} --output out --set precision=half",
    "run galaxy_shap --output out", "run --batchsize 8", "doctor", "frobnicate",
    "check --list-rounds", "check nowhere", "check --format jsn", "check mixed", f"check {OURS}",
    "summary mixed", f"summary mixed {OURS}/galaxy_shape-mini-closed {OURS}/kfac-mini-closed",
    "leaderboard mixed --output site", "diff site site", "data galaxy_shap", "pack nowhere",
    "round status nowhere", f"rcp {SHAPE}", "measure project resnet50 --published",
    "measure project resnet50 --like h100 --peak 312 --bandwidth 2039",
]  # fmt: skip


@cache
def run_all(folder: Path) -> Mapping[str, Line]:
    return run_lines(LINES, "import os; os.environ.pop('COLUMNS', None)", folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("width")
    chosen = definition.load("galaxy_shape", "mini")
    write_mixed(folder / "mixed", chosen)
    write_result(folder / "mixed" / "more", chosen, runs=1)
    return folder


def find_long(text: str) -> list[str]:
    return [
        line
        for line in text.splitlines()
        if len(line) > COLUMNS and len(WORD.findall(line.strip())) > 1
        and max(map(len, WORD.findall(line))) < COLUMNS - 8
    ]  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_every_line_fits(line: str, folder: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("scipy")
    ended = run_all(folder)[line]
    assert "Traceback" not in ended.stderr
    assert ended.stdout or ended.stderr
    assert find_long(ended.stdout + ended.stderr) == []


@pytest.mark.parametrize("command", HELP)
def test_every_command_explains_itself_without_torch(command: str, folder: Path) -> None:
    ended = run_all(folder)[f"{command} --help"]
    assert ended.returncode == 0, ended.stderr
    assert f"usage: cepheid {command}" in " ".join(ended.stdout.split())
    assert not ended.has_torch, f"cepheid {command} --help imports torch, or one before it does"


@pytest.mark.parametrize("rule", read_rules())
def test_rules_and_codes_fit(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from cepheid.compliance.report.rulebook import explain

    monkeypatch.setenv("COLUMNS", "80")
    for asked in (rule, *list_codes(rule)):
        assert find_long(explain(asked)) == []


def test_tables_of_studies_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    show = "aten::mm {}: {}".format
    columns = [study.Column(f"head {number}", partial(show, number)) for number in range(9)]
    text = study.format_table(study.Table("", columns, ["a" * 30, "b, c and more words"]))
    assert max(map(len, text.splitlines())) <= COLUMNS
    assert {f"aten::mm {number}:" for number in range(9)} <= {*re.findall(r"aten::mm \d:", text)}
    assert wrap("word " * 40).count("\n") == 2
