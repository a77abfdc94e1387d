"""What vendors' and organisers' CI runs: the action's own script, and what git says has changed."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from cepheid.rules import definition
from cepheid.rules.errors import UserError
from cepheid.rules.host import ROOT
from cepheid.tools import check_compliance
from cepheid.tools.console.changed import find_change
from tests import assert_refused
from tests.checkout import commit, git, run_program, use_git_in
from tests.compliance.builder import SYSTEM, write_result

MINI = definition.load("galaxy_shape", "mini")
RESULT = "results/box/galaxy_shape-mini-closed"
Printed = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with two submissions, and a branch on which nothing has changed yet."""
    root = tmp_path_factory.mktemp("template") / "checkout"
    for name, block_ms in (("acme", 2000.0), ("umbrella", 2100.0)):
        system, folder = {**SYSTEM, "submitter": name}, root / "submissions" / name
        write_result(folder, MINI, system=system, blocks=lambda index: 11, block_ms=block_ms)
    (root / "rules").mkdir()
    (root / "rules" / "training.md").touch()
    with pytest.MonkeyPatch.context() as patch:
        use_git_in(root, patch)
        git("init", "-q", "-b", "main")
        commit()
        git("switch", "-q", "-c", "branch")
    return root


@pytest.fixture
def checkout(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that repository, in which the test works."""
    root = shutil.copytree(template, tmp_path / "checkout")
    use_git_in(root, monkeypatch)
    return root


def test_only_what_a_branch_changes_is_reported(checkout: Path, capsys: Printed) -> None:
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
        assert "fail: 5 logs" in printed

    git("switch", "-q", "-c", "other", "main")
    (checkout / "rules" / "training.md").write_text("other rules\n")
    check_compliance.main(["--changed", "main"])
    assert "10 logs" in capsys.readouterr().out


def rename_log(acme: Path) -> None:
    (acme / RESULT / "result_4.txt").rename(acme / "notes")
    commit()


def add_odd_name(acme: Path) -> None:
    (acme / os.fsdecode(b"caf\xe9.txt")).touch()
    commit()


def add_ignored_file(acme: Path) -> None:
    (acme.parents[1] / ".git/info/exclude").write_text("*.log")
    (acme / "a.log").touch()


def put_link(acme: Path) -> None:
    (acme / "LICENSE").unlink()
    (acme / "LICENSE").symlink_to("x")


CHANGES: dict[str, Callable[[Path], object]] = {
    "renamed": rename_log,
    "named in another encoding": add_odd_name,
    "untracked": lambda acme: (acme / "notes").touch(),
    "ignored": add_ignored_file,
    "with a blank and a quote": lambda acme: (acme / 'a "b\n').touch(),
    "executable": lambda acme: (acme / "LICENSE").chmod(0o755),
    "a link": put_link,
    "emptied": lambda acme: (acme / "LICENSE").write_text(""),
}


@pytest.mark.parametrize("name", CHANGES)
def test_any_change_of_a_submission_is_seen(name: str, checkout: Path) -> None:
    CHANGES[name](checkout / "submissions" / "acme")
    change = find_change("main")
    assert list(change.submitters) == ["acme"]
    assert not change.beside
    assert not change.elsewhere
    assert not change.is_untouched(checkout / "submissions" / "acme")
    assert change.is_untouched(checkout / "submissions" / "umbrella" / RESULT)


@pytest.mark.parametrize(
    "name",
    ["rules/training.md", "compliance/checks/registry.py", "benchmarks/ssd/benchmark.yaml",
     "action.yml", ".github/workflows/submissions.yml", "setup.cfg", ".gitattributes",
     "submissions2/x"],
)  # fmt: skip
def test_a_submission_comes_without_the_rules_that_judge_it(name: str, checkout: Path) -> None:
    (checkout / "submissions" / "acme" / "NOTICE").touch()
    (checkout / name).parent.mkdir(parents=True, exist_ok=True)
    (checkout / name).write_text("mine")
    commit()
    for options in ([], ["--organiser"]):
        with pytest.raises(UserError, match=re.escape(f"touches submissions and {name}: a subm")):
            check_compliance.main(["--changed", "main", *options])


@pytest.mark.parametrize("other", ["umbrella/NOTICE", "README.md", "organisers.yaml"])
def test_a_submitter_changes_only_their_own_folder(
    other: str, checkout: Path, capsys: Printed
) -> None:
    (checkout / "submissions" / "acme" / "NOTICE").touch()
    (checkout / "submissions" / other).touch()
    with pytest.raises(UserError, match="only the files in their own folder"):
        check_compliance.main(["--changed", "main"])


def test_only_organisers_remove_a_submission(checkout: Path, capsys: Printed) -> None:
    shutil.rmtree(checkout / "submissions" / "acme")
    with pytest.raises(UserError, match=r"removes submissions/acme; fix: put it back and"):
        check_compliance.main(["--changed", "main"])
    assert check_compliance.main(["--changed", "main", "--organiser"]) == 0
    assert "pass: 5 logs" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["decisions.yaml", "README.md"])
def test_what_organisers_write_beside_submissions_is_judged(
    name: str, checkout: Path, capsys: Printed
) -> None:
    """A decision may concern every result."""
    (checkout / "submissions" / name).write_text("waivers: []\n")
    assert check_compliance.main(["--changed", "main", "--organiser"]) == 0
    assert "pass: 10 logs" in capsys.readouterr().out
    (checkout / "submissions" / "acme" / "NOTICE").touch()
    assert check_compliance.main(["--changed", "main", "--organiser"]) == 0
    logs = 10 if name == "decisions.yaml" else 5
    assert f"pass: {logs} logs" in capsys.readouterr().out


def test_a_copy_on_a_branch_is_refused_and_its_original_is_innocent(
    checkout: Path, capsys: Printed
) -> None:
    shutil.copytree(checkout / "submissions" / "umbrella", checkout / "submissions" / "aaa")
    for is_committed in (False, True):
        if is_committed:
            commit()
        assert check_compliance.main(["--changed", "main", "--format", "json"]) == 1
        found = json.loads(capsys.readouterr().out)["findings"]
        copied = {each["path"].split("/")[1] for each in found if each["code"] == "T19.recycled"}
        assert copied == {"aaa"}
        assert not [each for each in found if each["path"].startswith("submissions/umbrella")]


def hide_behind_link(submissions: Path) -> None:
    shutil.rmtree(submissions / "acme")
    (submissions / "acme").symlink_to("umbrella")


def nest_repository(submissions: Path) -> None:
    folder = shutil.copytree(submissions / "umbrella", submissions / "zeta")
    git("-C", str(folder), "init", "-q")
    git("-C", str(folder), "add", "-A")
    git("-C", str(folder), "commit", "-q", "-m", "hidden")


def link_all(submissions: Path) -> None:
    submissions.rename(submissions.with_name("real"))
    submissions.symlink_to("real")


HIDING: dict[str, tuple[Callable[[Path], object], str]] = {
    "a folder is a link to a rival's": (hide_behind_link, "only the files in their own"),
    "a link beside": (lambda there: (there / "zeta").symlink_to("umbrella"), "only the files in"),
    "a repository as a new folder": (nest_repository, "only the files in their own folder"),
    "all is a link": (link_all, "base branch"),
    "attributes of git": (
        lambda there: (there / "acme" / ".gitattributes").write_text("* -diff export-ignore\n"),
        "S5.name"),
    "another case": (lambda there: (there / "acme").rename(there / "Acme"), "only the files in"),
    "a rival's folder renamed": (
        lambda there: (there / "umbrella").rename(there / "zeta"), "only the files in their own"),
    "a rival's run moved": (
        lambda there: (there / "umbrella" / RESULT / "result_0.txt").rename(
            there / "acme" / RESULT / "result_9.txt"), "only the files in their own folder"),
    "decisions of one's own": (
        lambda there: (there / "acme" / "decisions.yaml").write_text("waivers: []\n"),
        "S1.misplaced"),
    "submissions in a submission": (
        lambda there: shutil.copytree(there / "umbrella", there / "acme/submissions/umbrella"),
        "S1.misplaced"),
    "a team that copies the first one": (
        lambda there: shutil.copytree(there / "umbrella", there / "umbrella_2"), "T19.recycled"),
}  # fmt: skip


@pytest.mark.parametrize("name", HIDING)
def test_nothing_is_hidden_from_the_judge(name: str, checkout: Path, capsys: Printed) -> None:
    change, says = HIDING[name]
    change(checkout / "submissions")
    commit()
    try:
        assert check_compliance.main(["--changed", "main"]) == 1
        told = capsys.readouterr().out
    except UserError as error:
        told = str(error)
    assert says in told


def test_what_happens_on_the_base_branch_is_not_the_branch_s(
    checkout: Path, capsys: Printed
) -> None:
    (checkout / "submissions" / "acme" / "NOTICE").touch()
    commit()
    git("switch", "-q", "main")
    shutil.rmtree(checkout / "submissions" / "umbrella" / "benchmarks")
    (checkout / "rules" / "training.md").write_text("other rules\n")
    commit()
    git("switch", "-q", "branch")
    assert check_compliance.main(["--changed", "main"]) == 0
    git("merge", "-q", "-m", "up to date", "main")
    assert check_compliance.main(["--changed", "main"]) == 0
    assert "umbrella" not in capsys.readouterr().out


def test_a_question_that_git_cannot_answer_is_an_error(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for revision in ("nowhere", "--output=x"):
        assert_refused("--changed", check_compliance.main, [f"--changed={revision}"])
    assert_refused("remove the path", check_compliance.main, ["--changed", "main", "submissions"])
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(checkout.parent))
    monkeypatch.chdir(checkout.parent)
    assert_refused("not a git repository", check_compliance.main, ["--changed", "main"])


@pytest.fixture
def install(tmp_path: Path) -> Callable[[Path], Path]:
    """Install the checker of a folder where the action does, and return RUNNER_TEMP."""

    def install_from(base: Path) -> Path:
        command = tmp_path / "temp" / "cepheid" / "bin" / "cepheid"
        command.parent.mkdir(parents=True)
        command.write_text(
            f'#!/bin/sh\nPYTHONPATH={base} exec {sys.executable} -m cepheid.tools.cli "$@"\n'
        )
        command.chmod(0o755)
        return tmp_path / "temp"

    return install_from


def run_check(temporary: Path, **inputs: str) -> "subprocess.CompletedProcess[str]":
    """Run the last step of the action, as the runner starts it."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    *_, install, check = action["runs"]["steps"]
    assert install["run"].rstrip().endswith('-e "$CEPHEID"'), "the core alone, without extras"
    assert "${{" not in check["run"], "an input must not become a part of the script"
    given = {name: str(known["default"]) for name, known in action["inputs"].items()}
    given |= {name.replace("_", "-"): value for name, value in inputs.items()}
    values = {
        name: re.sub(r"\$\{\{ inputs\.([a-z-]+) \}\}", lambda found: given[found[1]], text)
        for name, text in check["env"].items()
    }
    environment = {**os.environ, **values, "RUNNER_TEMP": str(temporary)}
    line = ["bash", "-eo", "pipefail", "-c", check["run"]]
    return run_program(line, env=environment)


def test_the_action_annotates_and_fails(checkout: Path, install: Callable[[Path], Path]) -> None:
    temporary = install(ROOT)
    (checkout / "submissions" / "acme" / "LICENSE").unlink()
    broken = run_check(temporary)
    assert broken.returncode == 1, broken.stderr
    assert "::error file=submissions/acme/LICENSE,title=S6.no_licence::" in broken.stdout
    assert run_check(temporary, changed_since="main").returncode == 1
    assert run_check(temporary, path="submissions/umbrella").returncode == 0
    assert run_check(temporary, path="$(touch pwned); no").returncode == 2
    assert not (checkout / "pwned").exists()


def test_the_base_judges_a_request_that_brings_its_own_judge(
    checkout: Path, tmp_path: Path, install: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps of the workflow: base and request are two checkouts, and the base's action runs."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/submissions.yml").read_text())
    assert set(workflow[True]) == {"pull_request_target", "push"}  # YAML reads `on` as True
    base, request, check = workflow["jobs"]["check"]["steps"]
    assert (base["with"]["path"], "ref" in base["with"]) == ("base", False)
    assert (request["with"]["path"], check["uses"]) == ("request", "./base")
    assert check["with"]["tree"] == "request"
    (checkout / "submissions" / "acme" / "LICENSE").unlink()
    for name in ("cepheid/__init__.py", "sitecustomize.py", "compliance/judge/judgement.py"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text("raise SystemExit(0)")  # a judge that passes everything
    temporary = install(ROOT)
    monkeypatch.chdir(checkout.parent)
    judged = run_check(temporary, tree="checkout", changed_since="main")
    assert (judged.returncode, "S6.no_licence" in judged.stdout) == (1, True)
    git("-C", "checkout", "add", "-A")
    mixed = run_check(temporary, tree="checkout", changed_since="main", organiser="true")
    assert (mixed.returncode, "base branch" in mixed.stderr) == (2, True)


def test_gitlab_judges_with_the_branch_that_is_merged_into(
    checkout: Path, tmp_path: Path, install: Callable[[Path], Path]
) -> None:
    """The lines of the template, but for those that install packages."""
    job = yaml.safe_load((ROOT / "docs/ci/gitlab-ci.yml").read_text())["cepheid-check"]
    git("clone", "-q", "--bare", ".", str(tmp_path / "origin"))
    git("remote", "add", "origin", str(tmp_path / "origin"))
    (checkout / "rules" / "training.md").write_text("mine")
    lines = [*job["before_script"], *job["script"]]
    kept = [line for line in lines if not re.search(r"apt-get|pip install", line)]
    assert len(lines) - len(kept) == 2
    script = "\n".join(["set -e", *kept]).replace("/tmp/base", str(tmp_path / "base"))
    command = install(ROOT) / "cepheid" / "bin"
    environment = {**os.environ, **job["variables"], "PATH": f"{command}:{os.environ['PATH']}"}
    environment |= {"CI_DEFAULT_BRANCH": "trunk", "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main"}
    environment = {name: str(value) for name, value in environment.items()}

    def run() -> "subprocess.CompletedProcess[str]":
        shutil.rmtree(tmp_path / "base", ignore_errors=True)
        git("worktree", "prune")
        line = ["bash", "-c", script]
        return run_program(line, env=environment)

    assert (run().returncode, (tmp_path / "base/rules/training.md").read_text()) == (0, "")
    (checkout / "submissions" / "acme" / "LICENSE").unlink()
    mixed = run()
    assert (mixed.returncode, "base branch" in mixed.stderr) == (2, True)
    git("checkout", "-q", "rules")
    alone = run()
    assert (alone.returncode, "S6.no_licence" in alone.stdout) == (1, True)


def test_tests_of_promises_run_for_every_commit() -> None:
    """A test that is neither run by `make test` nor by `make test-promises` guards nothing."""
    makefile = (ROOT / "Makefile").read_text()
    assert 'MARKS ?= -m "not slow and not promise"' in makefile
    assert '-m "promise and not slow" $(TESTS)' in makefile
    for file in (".ci/run", ".github/workflows/ci.yml"):
        assert """make test MARKS='-m "not slow"'""" in (ROOT / file).read_text(), file
    assert "test-promises" in (ROOT / "CONTRIBUTING.md").read_text()


def test_actions_are_pinned_by_one_commit_each() -> None:
    texts = [path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml")]
    used = {action for text in texts for action in re.findall(r"uses: ([^.\s]\S*)", text)}
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action) for action in used), used
    assert len({action.partition("@")[0] for action in used}) == len(used)


FILES = ("docs/ci/gitlab-ci.yml", "docs/ci/gitlab-vendor.yml", ".pre-commit-config.yaml")


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
