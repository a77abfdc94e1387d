"""Rule files of mlcommons: all that are installed can be read, and others are refused by line."""

import textwrap
import time
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from cepheid.rules import rounds
from cepheid.rules.errors import UserError
from cepheid.rules.mlperf import rule_files
from cepheid.rules.mlperf.rule_files import VARIABLE, RuleSet, find_rule_sets
from cepheid.tools import build_leaderboard, check_compliance, summarize_results
from tests import assert_refused
from tests.compliance.asserting import Printed, call_tool, require
from tests.compliance.checks.test_mlperf import submit
from tests.compliance.history import change, mllog_lines, resnet_40

META = "_ALL_RESULT_FILE_COUNTS = {'training': {'bert': 10}}\n" \
       "_ALL_ALLOWED_BENCHMARKS = {'training': {'9.0': ['bert']}}\n"  # fmt: skip


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with the rules of a coming round; returns their folder."""
    package = tmp_path / "logging" / "mlperf_logging"
    folder = package / "compliance_checker" / "training_9.0.0"
    folder.mkdir(parents=True)
    (package / "benchmark_meta.py").write_text(META)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "logging"))
    rounds.load.cache_clear()
    return folder


def read(folder: Path, text: str) -> object:
    (folder / "common.yaml").write_text(text, encoding="utf-8")
    rule_files._find_file.cache_clear()
    return find_rule_sets()["mlperf-training-9.0"].read("training_9.0.0/common.yaml")


@pytest.mark.parametrize("name", find_rule_sets())
def test_every_installed_rule_is_understood(name: str) -> None:
    rule_set = find_rule_sets()[name]
    keys = 0
    for path in sorted(rule_set.folder.glob("*.yaml")):
        file = require(rule_set.read(f"{rule_set.folder.name}/{path.name}"))
        text = path.read_text(encoding="utf-8")
        assert (file.joins != "") == ("aggregated_eval_accuracy" in text and "BEGIN" in text)
        keys += len(file.keys)
    assert keys > 30
    judged_in = rounds.load(name)
    assert judged_in.benchmarks
    assert judged_in.judge.startswith("mlperf-logging ")


@pytest.mark.parametrize("name", ["../x.yaml", "training_9.0.0/../../x.yaml", "/etc/passwd", ""])
def test_a_log_leads_to_no_other_file(name: str) -> None:
    assert RuleSet(Path("/"), "training", "9.0", "").read(name) is None


def test_the_unknown_is_refused_by_line(checkout: Path) -> None:
    for text, line, said in [
        ("- KEY:\n    NAME: a\n    REQ: SOMETIMES\n", 3, "the count SOMETIMES"),
        ("- KEY:\n    NAME: a\n    CHECK: \" open('x') \"\n", 3, "a call of open"),
        ("- KEY:\n    NAME: a\n    NEW: 1\n", 2, "the field NEW"),
        ("- RULE:\n    NAME: a\n", 2, "an entry RULE"),
        ('- BEGIN:\n    CODE: " import os "\n', 2, "Import"),
        ("- KEY:\n    REQ: EXACTLY_ONE\n", 2, "a key without NAME"),
        ("- KEY:\n    NAME: a\n    CHECK:\n        - \"v['value'] ==\"\n", 4, "no Python"),
        ("- KEY:\n    NAME: [a]\n", 2, "something else than a text"),
        ("KEY: 1\n", 1, "something else than a list"),
        ("- KEY: a\n  END: b\n", 1, "an entry that is not one of"),
    ]:
        with pytest.raises(UserError) as caught:
            read(checkout, text)
        assert f"common.yaml:{line}: not supported: {said}" in str(caught.value)


KEY = "- KEY:\n    NAME: a\n    "
JOIN = """from dataclasses import replace
joined = {}
for line in loglines:
    if line.key == "eval_accuracy" and 'metric' in line.value['metadata']:
        count = line.value['metadata']['samples_count']
        joined[count] = replace(line, key="aggregated_eval_accuracy")
loglines.extend(joined.values())
"""
BOMB = "".join(f"- &a{k} [{', '.join([f'*a{k - 1}'] * 9) if k else 'x'}]\n" for k in range(9))
HOSTILE = (
    "", "# nothing\n",
    "- a: [", "&a [*a]", "\0", "[" * 100_000, "x" * 2_000_000, "- &a [&b [*a, *a]]", BOMB,
    "- !!python/object/apply:os.system [true]", f"{KEY}CHECK: {'(' * 9_000}", KEY + "x: 1\n" * 9,
    f"{KEY}POST: 'import os'", f"{KEY}POST: 'while True: pass'", f"{KEY}REQ: AT_LEAST({'9' * 99})",
    f"{KEY}CHECK: {'1+' * 40_000}1", f"{KEY}CHECK: '[0] * 10**9 * s'", f"{KEY}CHECK: 'f(f)'",
    "- BEGIN:\n    CODE: 'for x in loglines: pass'", f"{KEY}CHECK: {{a: b}}",
    f'- BEGIN:\n    CODE: "{"samples_count aggregated_eval_accuracy " * 20_000}"',
    "- BEGIN:\n    CODE: |\n" + textwrap.indent(JOIN + "import os\n", " " * 8),
)  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_file_is_refused_at_once(checkout: Path, text: str) -> None:
    started = time.process_time()
    with pytest.raises(UserError):
        read(checkout, text)
    assert time.process_time() - started < 1


def test_a_rule_file_that_fails_before_any_record_refuses_the_log(
    checkout: Path, tmp_path: Path, capsys: Printed
) -> None:
    (checkout / "common.yaml").write_text("- BEGIN:\n    CODE: \" s['a'] = s['b'] \"\n")
    log = tmp_path / "result_0.txt"
    log.write_text("".join(f"{line}\n" for line in mllog_lines(resnet_40())))
    assert check_compliance.main([str(log), "--round", "mlperf-training-9.0"]) == 1
    assert "M1.unreadable the log as a whole cannot be judged" in capsys.readouterr().out


@pytest.mark.parametrize("command", [summarize_results, build_leaderboard])
def test_a_coming_round_has_a_table_and_a_site(
    command: ModuleType, checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkout / "common.yaml").write_text("- KEY:\n    NAME: seed\n    REQ: EXACTLY_ONE\n")
    runs = [change(resnet_40(k), "submission_benchmark", value="bert") for k in range(10)]
    submit(tmp_path, runs)
    monkeypatch.delenv(VARIABLE)
    call = [str(tmp_path / "acme"), "--round", "mlperf-training-9.0"]
    assert_refused("no round", command.main, call)
    assert command.main([*call, "--rules", str(tmp_path / "logging")]) == 0


def test_a_coming_round_is_of_a_checkout(checkout: Path, tmp_path: Path) -> None:
    (checkout / "common.yaml").write_text(
        "- KEY:\n    NAME: seed\n    REQ: EXACTLY_ONE\n    CHECK: \" v['value'] > 5 \"\n"
    )
    log = tmp_path / "result_0.txt"
    log.write_text(
        ':::MLLOG {"namespace": "", "time_ms": 1, "event_type": "POINT_IN_TIME", "key": "seed", '
        '"value": 3, "metadata": {"file": "a", "lineno": 1}}\n'
    )
    call = [str(log), "--round", "mlperf-training-9.0", "--rules", str(tmp_path / "logging")]
    said = call_tool(check_compliance.main, call, 1)
    assert "result_0.txt:1: M1.value seed is not as the round requires" in said
    assert "expected above 5 (training_9.0.0/common.yaml), got 3" in said


def test_without_rules_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert_refused("expected a checkout of", find_rule_sets)
    monkeypatch.setattr(rule_files, "_find_rule_sets", lambda checkout: {})
    rounds.load.cache_clear()
    with pytest.raises(UserError, match=r"mlperf-training-5\.1: mlperf_logging is not installed"):
        rounds.load("mlperf-training-5.1")


def test_our_part_of_these_rounds_names_rules_that_exist() -> None:
    ours = yaml.safe_load(rounds.OF_MLPERF.read_text(encoding="utf-8"))
    assert ours.keys() == {"rules", "log", "drop", "also_called"} | {
        "of_mlcommons", "seeds_since", "descriptions_since", "statuses_since", "dialects",
        "without_rules", "seeds_compared_since",
    }  # fmt: skip
