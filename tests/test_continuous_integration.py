"""What vendors' and organisers' CI runs: the action's own script, and what git says has changed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cepheid.rules import definition
from cepheid.rules.errors import UserError
from cepheid.rules.installation import ROOT
from cepheid.tools import check_compliance
from tests.compliance.builder import SYSTEM, write_result

MINI = definition.load("galaxy_shape", "mini")
Printed = pytest.CaptureFixture[str]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with two submissions, and a branch on which nothing has changed yet."""
    root = tmp_path / "checkout"
    for name in ("acme", "umbrella"):
        system = {**SYSTEM, "submitter": name}
        write_result(root / "submissions" / name, MINI, system=system, blocks=lambda index: 8)
    (root / "rules").mkdir()
    (root / "rules" / "training.md").touch()
    monkeypatch.chdir(root)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "a")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "a@example.org")
    git("init", "-q", "-b", "main")
    commit()
    git("switch", "-q", "-c", "branch")
    return root


def git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], check=True, capture_output=True)


def commit() -> None:
    git("add", "-A")
    git("commit", "-q", "-m", "a change")


def test_only_what_a_branch_changes_is_checked(checkout: Path, capsys: Printed) -> None:
    assert check_compliance.main(["--changed", "main"]) == 0
    assert "no submission differs from main" in capsys.readouterr().out

    (checkout / "submissions" / "acme" / "LICENSE").unlink()
    for is_committed in (False, True):
        if is_committed:
            commit()
        assert check_compliance.main(["--changed", "main"]) == 1
        printed = capsys.readouterr().out
        assert printed.startswith("submissions/acme/LICENSE: S6")
        assert "umbrella" not in printed

    git("switch", "-q", "-c", "other", "main")
    (checkout / "rules" / "training.md").write_text("other rules\n")
    check_compliance.main(["--changed", "main"])
    assert "10 logs" in capsys.readouterr().out


def test_a_stray_file_on_a_branch_is_found(checkout: Path, capsys: Printed) -> None:
    (checkout / "submissions" / "result_0.txt").write_text("stray")
    commit()
    assert check_compliance.main(["--changed", "main"]) == 1
    assert "submissions/result_0.txt: S1.stray" in capsys.readouterr().out


def test_what_git_cannot_answer_is_told(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for revision in ("nowhere", "--output=x"):
        with pytest.raises(UserError, match="--changed"):
            check_compliance.main([f"--changed={revision}"])
    with pytest.raises(UserError, match="remove the path"):
        check_compliance.main(["--changed", "main", "submissions"])
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(checkout.parent))
    monkeypatch.chdir(checkout.parent)
    with pytest.raises(UserError, match="not a git repository"):
        check_compliance.main(["--changed", "main"])


def test_the_action_annotates_and_fails(checkout: Path, tmp_path: Path) -> None:
    """Its last step, as the runner starts it, with an installed `cepheid`."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    *_, install, check = action["runs"]["steps"]
    assert install["run"].rstrip().endswith('-e "$CEPHEID"'), "the core alone, without extras"
    assert "${{" not in check["run"], "an input must not become a part of the script"
    command = tmp_path / "temp" / "cepheid" / "bin" / "cepheid"
    command.parent.mkdir(parents=True)
    command.write_text(
        f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m cepheid.tools.cli "$@"\n'
    )
    command.chmod(0o755)
    (checkout / "submissions" / "acme" / "LICENSE").unlink()

    def run(path: str, since: str = "") -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, "RUNNER_TEMP": str(tmp_path / "temp")}
        environment |= {"CHECKED": path, "SINCE": since}
        line = ["bash", "-eo", "pipefail", "-c", check["run"]]
        return subprocess.run(line, env=environment, capture_output=True, text=True, check=False)

    broken = run("submissions")
    assert broken.returncode == 1, broken.stderr
    assert "::error file=submissions/acme/LICENSE,title=S6.no_licence::" in broken.stdout
    assert run("submissions", since="main").returncode == 1
    assert run("submissions/umbrella").returncode == 0
    assert run("$(touch pwned); no").returncode == 2
    assert not (checkout / "pwned").exists()


def test_tests_of_promises_run_for_every_commit() -> None:
    """A test that is neither run by `make test` nor by `make test-promises` guards nothing."""
    makefile = (ROOT / "Makefile").read_text()
    assert 'MARKS ?= -m "not slow and not promise"' in makefile
    assert '-m "promise and not slow" $(TESTS)' in makefile
    assert (ROOT / ".ci" / "run").read_text().endswith("make test\nmake test-promises\n")
    assert "run: make test-promises" in (ROOT / ".github/workflows/ci.yml").read_text()
    assert "test-promises" in (ROOT / "CONTRIBUTING.md").read_text()


FILES = (".github/workflows/submissions.yml", "docs/ci/gitlab-ci.yml", ".pre-commit-config.yaml")


@pytest.mark.parametrize("path", FILES)
def test_the_commands_of_ci_are_ones_that_there_are(path: str) -> None:
    """Every `cepheid` line of the files parses."""
    text = (ROOT / path).read_text()
    assert yaml.safe_load(text)
    lines = [line.split("cepheid ", 1)[1] for line in text.splitlines() if "cepheid check " in line]
    assert lines
    for line in lines:
        words = line.split("||")[0].split("#")[0].replace('"', "").split()
        if words[1] != "of":  # prose
            check_compliance.COMMAND.make_parser().parse_args(words[1:])
