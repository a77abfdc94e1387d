"""`cepheid` itself: dispatch, exit codes, no traceback for a user's mistake."""

import configparser
import os
import platform
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
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
from cepheid.tools.run import costs, ending
from tests.compliance.asserting import Patch, Printed, call_tool, require
from tests.processes import cepheid

ROOT = Path(__file__).resolve().parents[2]


def exit_code(tool: Callable[[Sequence[str] | None], int]) -> int | str | None:
    with pytest.raises(SystemExit) as caught:
        program.run_tool(tool)
    return caught.value.code


def raising(error: BaseException) -> Callable[[Sequence[str] | None], int]:
    def tool(argv: Sequence[str] | None) -> int:
        raise error

    return tool


def test_exit_codes_and_that_only_a_bug_shows_a_traceback(capsys: Printed) -> None:
    assert exit_code(lambda argv: 1) == 1
    assert exit_code(raising(KeyboardInterrupt())) == 1
    assert "Traceback" not in capsys.readouterr().err
    assert exit_code(raising(UserError("no such thing"))) == 2
    assert capsys.readouterr().err == "cepheid: no such thing\n"
    assert exit_code(raising(ValueError("ours"))) == 2
    assert "Traceback" in capsys.readouterr().err
    assert exit_code(raising(ModuleNotFoundError("No module named 'galsim'", name="galsim"))) == 2
    said = capsys.readouterr().err
    assert "galsim is not installed; it comes with the extra galsim" in said
    assert "Traceback" not in said
    assert exit_code(raising(ModuleNotFoundError("No module named 'x'", name="x"))) == 2
    assert "Traceback" in capsys.readouterr().err


def test_the_version_names_what_a_bug_report_needs(monkeypatch: Patch) -> None:
    def find_nothing(name: str) -> str:
        raise PackageNotFoundError(name)

    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    rest = f", Python {platform.python_version()}, round {rounds.CURRENT}\n"
    printed = call_tool(cli.main, ["--version"])
    assert re.fullmatch(rf"cepheid [0-9]\S*{re.escape(rest)}", printed)
    monkeypatch.setattr(metadata, "version", find_nothing)  # a checkout that is not installed
    assert call_tool(cli.main, ["--version"]) == f"cepheid {settings['metadata']['version']}{rest}"


def test_commands_are_few_and_show_every_benchmark() -> None:
    assert len(cli.COMMANDS) <= 16  # `rehearse` is for vendors, `doctor` for newcomers
    for line in (["run", "--list"], ["doctor"]):
        lines = call_tool(cli.main, line).splitlines()
        assert set(definition.names()) <= {each.partition(" ")[0] for each in lines}


def list_options() -> set[str]:
    commands = (*cli.COMMANDS.values(), *MEASUREMENTS.values())
    modules = [import_module(module) for module, _ in commands]
    parsers = [each.COMMAND.make_parser() for each in modules if hasattr(each, "COMMAND")]
    parsers += [make_study_parser(each.STUDY, "") for each in modules if hasattr(each, "STUDY")]
    return {each for parser in parsers for each in parser._option_string_actions} - {"-h", "--help"}


def test_keys_and_options_are_those_that_the_plan_lists() -> None:
    plan = tomllib.loads((ROOT / "tests/house.toml").read_text(encoding="utf-8"))["settings"]
    chosen = [definition.load(n, s) for n in definition.names() for s in definition.scales(n)]
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
        shell=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ended.stderr == ""


TABLE = yaml.safe_load(Path(__file__).with_name("wrong_use.yaml").read_text(encoding="utf-8"))
ROWS = [(command, *row) for command, rows in TABLE.items() for row in rows]


@pytest.mark.parametrize(("command", "arguments", "says"), ROWS)
def test_wrong_use_is_told_in_one_line_and_leaves_nothing(
    command: str, arguments: str, says: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    for package in ("torch", "galsim", "matplotlib"):
        pytest.importorskip(package)
    from cepheid.measure.studies.scaling import scaling

    monkeypatch.setattr(scaling, "_count_places", lambda: (2, "processors"))
    for variable in (DEVICE, DEVICE_MODULE, BACKEND_VARIABLE):  # options set them
        monkeypatch.setenv(variable, "")
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    folder = str(tmp_path / "kept")
    with pytest.raises(UserError, match=says) as raised:
        cli.main([*command.split(), *arguments.replace("FOLDER", folder).split()])
    assert "\n" not in str(raised.value)
    assert list(here.iterdir()) == []


def test_every_dataset_has_a_size_and_our_results_a_time() -> None:
    for name in definition.names():
        for scale in definition.scales(name):
            assert costs.find_disk(definition.load(name, scale)), (name, scale)
        assert costs.find_memory(definition.load(name, "mini")), name
    reference = require(costs.find_reference(definition.load("galaxy_shape", "mini")))
    assert 5 < reference.seconds < 60
    itself = costs.OURS / "results" / reference.system / "galaxy_shape-mini-closed"
    other = costs.find_reference(definition.load("galaxy_shape", "mini"), other_than=itself)
    assert require(other).system != reference.system
    full = definition.load("galaxy_shape", "full")
    ours = [costs.find_reference(full, on_accelerators=kind) for kind in (False, True)]
    assert [one and costs.has_accelerators(costs.OURS, one.system) for one in ours] == [False, True]


def test_the_last_lines_say_what_the_number_means() -> None:
    chosen = definition.load("galaxy_shape", "mini")
    folder = ROOT / "submissions/cepheid"
    result = folder / "results/2x-amd-epyc-zen4/galaxy_shape-mini-closed"
    text = ending.describe_end(chosen, result, folder, 6)
    for words in ("5 of 6 runs", "the targets were reached", "target 0.117 (error of", "compare: ",
                  "--runs +1 makes one", "benchmarks/galaxy_shape/README.md"):  # fmt: skip
        assert words in " ".join(text.split()), text
    assert ending.describe_end(chosen, ROOT / "docs", folder, 6) == ""


def test_a_wrong_option_is_one_line(capsys: Printed) -> None:
    for line, said in [
        (["run", "--divison", "open"], 'unrecognized arguments: --divison; did you mean "--div'),
        (["check", "--fromat=json"], 'did you mean "--format"'),
        (["summary", "--format"], "argument --format: expected one argument"),
        (["check", "--format", "jsn"], 'did you mean "json"?'),
        (["run", "--batchsize", "8"], "did you mean `--set global_batch_size=8`?"),
        (["run", "galaxy_shape", "--thread=2"], "did you mean `--set threads=2`?"),
        (["run", "galaxy_shape", "--lr", "1e-3"], "`--set opt_base_learning_rate=1e-3`?"),
        (["run", "galaxy_shape", "--amp"], "did you mean `--set precision=…`?"),
        (["run", "galaxy_shape", "--batch_size", "8"], "did you mean `--set global_batch_size=8`?"),
        (["run", "galaxy_shape", "-b", "8"], "did you mean `--set global_batch_size=8`?"),
        (["run", "galaxy_shape", "--set", "lr", "0.1"], "`--set opt_base_learning_rate=0.1`?"),
        (["run", "galaxy_shape", "--set", "lr", "=", "0.1"], "`--set opt_base_learning_rate=0.1`?"),
        (["run", "galaxy_shape", "lr=0.1"], "`--set opt_base_learning_rate=0.1`?"),
        (["run", "galaxy_shape", "-o", "x"], 'did you mean "--output"?'),
        (["run", "galaxy_shape", "--gpu", "1"], 'did you mean "--device"?'),
        (["run", "galaxy_shape", "--seeds", "1"], 'did you mean "--seed"?'),
        (["run", "galaxy_shape", "--epochs", "1"], "; a run ends when its targets are reached"),
        (["run", "galaxy_shape", "--wd", "1"], "; opt_weight_decay is a setting of "),
        (["run", "galaxy_shape", "1e-3"], "unrecognized arguments: 1e-3 (all"),
        (["run", "galaxy_shape", "--foo bar"], "unrecognized arguments: --foo bar (all"),
        (["data", "prepare", "kfac"], "kfac; a benchmark stands alone: `cepheid data kfac`"),
        (["run", "galaxy_shape", "=", "="], "unrecognized arguments: = = (all"),
        (["measure", "sweep", "--epoks", "1"], 'did you mean "--epochs"?'),
        (["run", "--dryrun"], 'did you mean "--dry-run"?'),
        (["data", "x", "--exprt", "fits"], 'did you mean "--export"?'),
    ]:
        with pytest.raises(SystemExit) as ended:
            cli.main(line)
        printed = capsys.readouterr().err
        assert ended.value.code == 2
        assert said in printed
        assert printed.count("\n") == 1
        assert f"(all: `cepheid {line[0]} " in printed


OTHERS = {  # the options of training programs that many people know
    "torchvision": "data-path model device batch-size epochs workers opt lr momentum weight-decay "
    "label-smoothing mixup-alpha lr-scheduler lr-warmup-epochs output-dir resume start-epoch "
    "test-only random-erase amp world-size print-freq clip-grad-norm",
    "timm": "data-dir model b opt wd clip-grad sched epochs warmup-epochs smoothing seed "
    "log-interval eval-interval workers checkpoint-hist num-classes",
    "Hugging Face": "output_dir per_device_train_batch_size gradient_accumulation_steps "
    "learning_rate weight_decay adam_beta1 adam_epsilon max_grad_norm num_train_epochs max_steps "
    "lr_scheduler_type warmup_steps logging_dir logging_steps save_steps no_cuda bf16 fp16 tf32 "
    "dataloader_num_workers max_train_samples resume_from_checkpoint torch_compile optim report_to",
    "Lightning": "accelerator devices num_nodes precision max_epochs limit_train_batches "
    "fast_dev_run accumulate_grad_batches gradient_clip_val default_root_dir",
    "MLPerf": "batchsize lr epochs target seed threshold eval_interval local_rank dataset",
}  # fmt: skip
UNKNOWN = {"checkpoint-hist", "threshold", "smoothing"}


@pytest.mark.parametrize("program", OTHERS)
def test_options_of_other_programs_have_a_suggestion_or_an_explanation(
    program: str, capsys: Printed, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.chdir(tmp_path)
    for word in {*OTHERS[program].split()} - UNKNOWN:
        with pytest.raises((SystemExit, UserError)):
            cli.main(["run", "resnet50", f"--{word}", "1"])
        printed = capsys.readouterr().err
        assert "unrecognized arguments" not in printed or "; " in printed, printed
    assert not list(tmp_path.iterdir())


def test_severities_are_coloured_on_a_terminal_alone(monkeypatch: Patch) -> None:
    text = "a.txt:3: T8.late it is\nb.txt: T5.slow warning: it is\nfail: 2 logs, 1 error"
    of_summary = "  acme/box: provisional\n    T19.busy warning: it is"
    assert program.colour(text) == text
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert program.colour(text) == (
        "a.txt:3: \033[31mT8.late\033[0m it is\nb.txt: \033[33mT5.slow warning:\033[0m it is\n"
        "\033[31mfail\033[0m: 2 logs, 1 error"
    )
    assert "\n    \033[33mT19.busy warning:\033[0m" in program.colour(of_summary)
    assert program.colour(text, Path("file")) == text
    monkeypatch.setenv("NO_COLOR", "1")
    assert program.colour(text) == text


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("cepheid ru", {"run"}),
        ("cepheid run --sca", {"--scale"}),
        ("cepheid run galaxy_s", {"galaxy_shape"}),
        ("cepheid run galaxy_shape --scale m", {"mini"}),
        ("cepheid run kfac --set opt_mom", {"opt_momentum="}),
        ("cepheid measure spe", {"speed"}),
        ("cepheid measure speed --onl", {"--only"}),
    ],
)
def test_a_shell_completes_what_is_typed(line: str, expected: set[str], tmp_path: Path) -> None:
    told = tmp_path / "told"
    variables = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    variables |= {"_ARGCOMPLETE_STDOUT_FILENAME": str(told), "_ARGCOMPLETE_IFS": "\n"}
    assert cepheid(environment=variables, folder=ROOT).returncode == 0
    assert expected <= {word.strip() for word in told.read_text().split("\n")}


def test_completion_costs_nothing_otherwise() -> None:
    program = (
        "import sys; from cepheid.tools import cli; cli.main(['--version']); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=ROOT
    )
    assert not {"argcomplete", "cepheid.tools.console.completion"} & set(done.stdout.split())
