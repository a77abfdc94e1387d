"""`cepheid new-submission`: what it begins passes the check but for what only a person can add, and
its task runs."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compliance.judging import judge_folder

pytest.importorskip("torch", reason="runs need the extra torch")
pytest.importorskip("galsim", reason="runs need the extra galsim")

from cepheid.reference.machine import system
from cepheid.reference.session.code_digest import digest_own_code
from cepheid.reference.session.frameworks import find_own_task, import_own_task
from cepheid.rules import definition
from cepheid.rules.errors import UserError
from cepheid.tools import describe_system, new_submission
from tests import assert_refused
from tests.compliance.asserting import Printed, assert_says
from tests.compliance.builder import SYSTEM
from tests.tools.test_run_benchmark import FAST, cepheid_run, events


@pytest.fixture(autouse=True)
def _no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring peaks takes a second each time."""
    monkeypatch.setattr(describe_system, "measure_peaks", lambda ranks: {})


def begin(tmp_path: Path, *options: str, benchmark: str = "galaxy_shape") -> Path:
    where = ["--submissions", str(tmp_path / "submissions"), "--scale", "mini"]
    assert new_submission.main(["acme", "--benchmark", benchmark, *where, *options]) == 0
    return tmp_path / "submissions" / "acme"


@pytest.mark.parametrize("benchmark", definition.names())
def test_the_copied_task_has_all_modules_that_it_imports(benchmark: str, tmp_path: Path) -> None:
    files = new_submission.copy_task(benchmark)
    assert "task.py" in files
    for name, text in files.items():
        compile(text, name, "exec")
        assert not re.search(rf"(from|import) cepheid\.benchmarks\.{benchmark}\b", text)
        imported = re.findall(r"^\s*from \.(\w+) import", text, re.MULTILINE)
        imported += re.findall(r"^\s*from \. import (\w+)", text, re.MULTILINE)
        assert {f"{module}.py" for module in imported} <= files.keys()
        (tmp_path / name).write_text(text)
    assert import_own_task(find_own_task(tmp_path)).__name__ == "submitted.task"


def test_a_second_system_is_added_to_code_that_is_there(tmp_path: Path, capsys: Printed) -> None:
    root = begin(tmp_path)
    task = (root / "benchmarks/galaxy_shape/task.py").read_bytes()
    assert_refused(r"already exists.*--system FILE adds another", begin, tmp_path)
    (tmp_path / "big.json").write_text(json.dumps({**SYSTEM, "system": "big"}))
    capsys.readouterr()
    for _ in range(2):
        begin(tmp_path, "--system", str(tmp_path / "big.json"))
        assert f"run.sh --system {root / 'systems/big.json'}" in capsys.readouterr().out
    begin(tmp_path, "--system", str(tmp_path / "big.json"), "--division", "open")
    assert "big.json --division open" in capsys.readouterr().out
    assert json.loads((root / "systems/big.json").read_text())["submitter"] == "acme"
    assert (root / "benchmarks/galaxy_shape/task.py").read_bytes() == task


@pytest.mark.parametrize("division", ["closed", "open"])
def test_a_person_adds_what_the_check_lacks(division: str, tmp_path: Path, capsys: Printed) -> None:
    found = judge_folder(begin(tmp_path, "--division", division)).findings
    errors = {(finding.rule, finding.message) for finding in found if finding.is_error}
    no_result = "the submission holds no result" if division == "closed" else None
    expected = {("S2", "notes is still to be filled in")}
    expected.add(("S3", "the README.md is still to be written"))
    expected.add(("S1", no_result or "the result holds no run log"))
    assert errors == expected
    printed = capsys.readouterr().out
    assert "fill in notes" in printed
    assert ("describe what differs" in printed) == (division == "open")


@pytest.mark.parametrize(
    ("benchmark", "extra"), [("resnet50", "imagenet"), ("transformer", "translation")]
)
def test_its_readme_installs_all_extras(benchmark: str, extra: str, tmp_path: Path) -> None:
    root = begin(tmp_path, benchmark=benchmark)
    text = (root / "benchmarks" / benchmark / "README.md").read_text()
    assert_says(text, ".venv/bin/pip install -c constraints.txt", f"-e '.[torch,{extra},site]'")


def test_another_benchmark_joins_and_nothing_is_overwritten(tmp_path: Path) -> None:
    root = begin(tmp_path)
    (described,) = (root / "systems").iterdir()
    described.rename(root / "systems" / "box.json")
    content = json.loads((root / "systems" / "box.json").read_text()) | {"system": "box"}
    (root / "systems" / "box.json").write_text(json.dumps(content))
    begin(tmp_path, benchmark="galaxy_bnn")
    assert [path.name for path in (root / "systems").iterdir()] == ["box.json"]
    assert "systems/box.json" in (root / "benchmarks/galaxy_bnn/run.sh").read_text()
    assert_refused("already exists", begin, tmp_path)


def test_the_description_of_another_machine_is_taken(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.json"
    cluster.write_text(json.dumps({**SYSTEM, "system": "cluster", "submitter": "local"}))
    root = begin(tmp_path, "--system", str(cluster))
    (described,) = (root / "systems").iterdir()
    assert described.name == "cluster.json"
    assert json.loads(described.read_text()) == {**SYSTEM, "system": "cluster", "submitter": "acme"}
    assert "systems/cluster.json" in (root / "benchmarks/galaxy_shape/run.sh").read_text()
    begin(tmp_path, "--system", str(cluster), benchmark="galaxy_bnn")
    cluster.write_text(json.dumps({**SYSTEM, "system": "cluster", "nodes": 4}))
    with pytest.raises(UserError, match="already exists"):
        begin(tmp_path, "--system", str(cluster), benchmark="galaxy_vae")
    assert not (root / "benchmarks/galaxy_vae").exists()
    with pytest.raises(UserError, match="no such system description"):
        begin(tmp_path, "--system", str(tmp_path / "none.json"), benchmark="galaxy_vae")


@pytest.mark.parametrize("name", ["", "../x", "a/b", "-rf", "a\nb", "ü", "x" * 65])
def test_names_that_a_folder_cannot_have_are_refused(name: str, tmp_path: Path) -> None:
    where = ["--benchmark", "galaxy_shape", "--submissions", str(tmp_path), "--", name]
    assert_refused("cannot be the name of a submitter", new_submission.main, where)
    assert list(tmp_path.iterdir()) == []


def test_places_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    where = ["--benchmark", "galaxy_shape", "--submissions", str(tmp_path / "elsewhere"), "acme"]
    assert_refused("must be called submissions", new_submission.main, where)
    assert list(tmp_path.iterdir()) == []
    assert_refused("describe-system --output", system.read_description, tmp_path / "box.json")
    (tmp_path / "submissions").touch()
    assert_refused("cannot write there", begin, tmp_path)


@pytest.mark.promise
def test_its_task_runs_and_its_code_is_in_the_log(tmp_path: Path) -> None:
    root = begin(tmp_path)
    code = root / "benchmarks" / "galaxy_shape"
    (described,) = (root / "systems").iterdir()
    line = ["galaxy_shape", *FAST, "--task", code, "--system", described, "--output", root]
    line += ["--data", tmp_path / "data", "--runs"]
    first = cepheid_run(*line, "1")
    assert first.returncode == 0, first.stderr
    (log,) = root.glob("results/*/*/result_0.txt")
    logged = {event["key"]: event["value"] for event in events(log)}
    assert logged["task_digest"] == digest_own_code(code)
    assert logged["submission_org"] == "acme"
    assert not (root / "checkpoints").exists()
    assert list((tmp_path / "checkpoints" / "acme").glob("*/*/run_0.pt"))

    (code / "README.md").write_text("other words\n")
    assert "nothing to run" in cepheid_run(*line, "1").stdout
    (code / "model.py").write_text((code / "model.py").read_text() + "# changed\n")
    other = cepheid_run(*line, "2")
    assert other.returncode == 2
    assert "code_digest was" in " ".join(other.stderr.split())


def test_wrong_tasks_are_refused(tmp_path: Path) -> None:
    for name, text, says in [
        ("task.py", None, "no such file"),
        ("task.txt", "", "expected a Python file"),
        ("task.py", "", "has no WORKLOAD"),
        (
            "task.py",  # of an earlier version
            "import math\n\nfrom reference.torch.task import TorchTask\n",
            r"task\.py:3: imports reference, which is now cepheid.reference",
        ),
        (
            "task.py",
            "import math\n\nfrom cepheid.reference.torch.task import TorchTask\n",
            r"task\.py:3: imports .* is gone; fix: .* WORKLOAD",
        ),
    ]:
        if text is not None:
            (tmp_path / name).write_text(text)
        with pytest.raises(UserError, match=says):
            import_own_task(find_own_task(tmp_path / name))


@pytest.mark.parametrize(
    ("name", "write", "says"),
    [
        ("__pycache__/task.cpython-311.pyc", Path.touch, "byte code"),
        ("__pycache__/fast.py", Path.touch, "byte code"),
        ("model.pyc", Path.touch, "byte code"),
        ("inner/model.py", lambda path: path.symlink_to("/tmp/fast.py"), "a link"),
        ("data.fifo", os.mkfifo, "a device"),
        ("README.md", lambda path: (path.touch(), path.chmod(0o755)), "executable"),
    ],
)
def test_only_code_that_is_bound_can_run(
    name: str, write: Callable[[Path], object], says: str, tmp_path: Path
) -> None:
    (tmp_path / "task.py").touch()
    assert find_own_task(tmp_path) == tmp_path / "task.py"
    (tmp_path / name).parent.mkdir(exist_ok=True)
    write(tmp_path / name)
    assert_refused(f"{name.split('/')[0]}.*{says}", find_own_task, tmp_path)


def test_a_task_leaves_no_byte_code(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text("from .model import create\n")
    (tmp_path / "model.py").write_text("def create(config, ranks): ...\n")
    import_own_task(find_own_task(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.py", "task.py"]


@pytest.mark.parametrize("name", ["README.py", "LICENSE.so", "copying.pth", "README.sh"])
def test_files_that_only_look_like_text_are_code(name: str, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("text")
    before = digest_own_code(tmp_path)
    (tmp_path / name).write_text("code")
    assert digest_own_code(tmp_path) != before
