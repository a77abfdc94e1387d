"""`cepheid` itself: dispatch, exit codes, no traceback for a user's mistake."""

import configparser
import os
import platform
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module, metadata
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import yaml

from cepheid.reference.machine.accelerators import DEVICE, DEVICE_MODULE
from cepheid.reference.run.execution import list_choices
from cepheid.rules import definition, rounds
from cepheid.rules.errors import UserError
from cepheid.rules.host import BACKEND_VARIABLE
from cepheid.tools import cli
from cepheid.tools.console import program
from cepheid.tools.console.arguments import make_study_parser
from cepheid.tools.measure.__main__ import MEASUREMENTS
from tests.processes import Line, run_lines

ROOT = Path(__file__).resolve().parents[2]


def exit_code(tool: Callable[[Sequence[str] | None], int]) -> int | str | None:
    with pytest.raises(SystemExit) as caught:
        program.run_tool(tool)
    return caught.value.code


def raising(error: BaseException) -> Callable[[Sequence[str] | None], int]:
    def tool(argv: Sequence[str] | None) -> int:
        raise error

    return tool


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(lambda argv: 1) == 1
    assert exit_code(raising(KeyboardInterrupt())) == 1
    assert "Traceback" not in capsys.readouterr().err
    assert exit_code(raising(UserError("no such thing"))) == 2
    assert capsys.readouterr().err == "cepheid: no such thing\n"


def test_a_missing_extra_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(raising(ModuleNotFoundError("No module named 'galsim'", name="galsim"))) == 2
    said = capsys.readouterr().err
    assert "galsim is not installed; it comes with the extra galsim" in said
    assert "Traceback" not in said
    assert exit_code(raising(ModuleNotFoundError("No module named 'x'", name="x"))) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_bug_shows_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(raising(ValueError("ours"))) == 2
    assert "Traceback" in capsys.readouterr().err


def test_the_version_names_what_a_bug_report_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find_nothing(name: str) -> str:
        raise PackageNotFoundError(name)

    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    rest = f", Python {platform.python_version()}, round {rounds.CURRENT}\n"
    assert cli.main(["--version"]) == 0
    printed = capsys.readouterr().out
    assert re.fullmatch(rf"cepheid [0-9]\S*{re.escape(rest)}", printed)
    monkeypatch.setattr(metadata, "version", find_nothing)  # a checkout that is not installed
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"cepheid {settings['metadata']['version']}{rest}"


def test_unknown_command_suggests() -> None:
    with pytest.raises(UserError, match='did you mean "summary"'):
        cli.main(["sumary"])


def test_unknown_measurement_suggests() -> None:
    with pytest.raises(UserError, match=r'no measurement "spede"; did you mean "speed"'):
        cli.main(["measure", "spede"])


@pytest.mark.parametrize("name", sorted(cli.MOVED))
def test_a_command_of_an_earlier_version_says_where_it_went(name: str) -> None:
    with pytest.raises(UserError, match=f"`cepheid {name}` is now `cepheid {cli.MOVED[name]}`"):
        cli.main([name, "--help"])
    assert cli.MOVED[name].split()[1] in MEASUREMENTS


def test_there_are_few_commands() -> None:
    assert len(cli.COMMANDS) <= 15  # `rehearse` is for vendors, who have no other proof


COMMAND_LINES = [*cli.COMMANDS, *(f"measure {name}" for name in MEASUREMENTS)]


@cache
def explain_all() -> Mapping[str, Line]:
    """Return the help of all commands, one after the other in one interpreter."""
    return run_lines([f"{command} --help" for command in COMMAND_LINES], "", ROOT)


@pytest.mark.parametrize("command", COMMAND_LINES)
def test_every_command_explains_itself_quickly(command: str) -> None:
    ended = explain_all()[f"{command} --help"]
    assert ended.returncode == 0, ended.stderr
    assert f"usage: cepheid {command}" in ended.stdout
    assert not ended.has_torch, f"cepheid {command} --help imports torch, or one before it does"


SCALES = ("mini", "full")


def list_options() -> set[str]:
    """Return the options of all commands and studies."""
    commands = (*cli.COMMANDS.values(), *MEASUREMENTS.values())
    modules = [import_module(module) for module, _ in commands]
    parsers = [each.COMMAND.make_parser() for each in modules if hasattr(each, "COMMAND")]
    parsers += [make_study_parser(each.STUDY, "") for each in modules if hasattr(each, "STUDY")]
    return {each for parser in parsers for each in parser._option_string_actions} - {"-h", "--help"}


def test_keys_and_options_are_those_that_the_plan_lists() -> None:
    plan = tomllib.loads((ROOT / "tests/house.toml").read_text(encoding="utf-8"))["settings"]
    chosen = [
        definition.load(n, scale) for n in definition.names() for scale in definition.scales(n)
    ]
    rules = [rule for each in chosen for rule in each.hyperparameters.values()]
    keys = {rule.name for rule in rules if not (rule.is_constant and rule.open == rule.closed)}
    keys |= {key for each in chosen for key in (*list_choices(each, "torch"), *each.variants)}
    constants = {rule.name for rule in rules} - keys
    here = {"keys": keys, "constants": constants, "options": list_options()}
    why = "a new key or option stands in [settings] of tests/house.toml; its commit names its user"
    assert {kind: sorted(names) for kind, names in here.items()} == plan, why
    assert len(keys) <= 80


def test_a_reader_may_stop_early() -> None:
    ended = subprocess.run(
        f"{sys.executable} -m cepheid.tools.cli run --list | head -c 1",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        shell=True, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.stderr == ""


TABLE = yaml.safe_load(Path(__file__).with_name("wrong_use.yaml").read_text(encoding="utf-8"))
ROWS = [(command, *row) for command, rows in TABLE.items() for row in rows]


@pytest.mark.parametrize(("command", "arguments", "says"), ROWS)
def test_wrong_use_is_told_in_one_line_and_leaves_nothing(
    command: str, arguments: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("torch", "galsim", "matplotlib"):
        pytest.importorskip(package)
    from cepheid.measure.studies.scaling import scaling
    from tests.measure.test_projection import write_folder

    monkeypatch.setattr(scaling, "_count_places", lambda: (2, "processors"))
    for variable in (
        DEVICE,
        DEVICE_MODULE,
        BACKEND_VARIABLE,
    ):  # options set them
        monkeypatch.setenv(variable, "")
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    folder = str(write_folder(tmp_path)) if "FOLDER" in arguments else ""
    with pytest.raises(UserError, match=says) as raised:
        cli.main([*command.split(), *arguments.replace("FOLDER", folder).split()])
    assert "\n" not in str(raised.value)
    assert list(here.iterdir()) == []
