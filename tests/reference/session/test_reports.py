"""The report of a run: tables and energy, and no harm where they cannot be made."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from cepheid.reference.run.config import RunConfig, configure
from cepheid.reference.run.report import Table
from cepheid.reference.session.artifacts import keep_report
from cepheid.reference.session.result_folder import ResultFolder
from cepheid.rules import definition
from cepheid.rules.errors import UserError
from tests.reference.run.recorder import Recorder

TABLE = Table(
    "Bias",
    (
        {"quantity": "m", "e1": -0.11239, "e1_error": 0.0075, "galaxies": 12},
        {"quantity": "c", "e1": 0.00321, "e1_error": 0.00067, "galaxies": 12},
        {"quantity": "nothing", "e1": math.nan, "e1_error": math.inf, "galaxies": 0},
    ),
    "a note",
)


class Reporting:
    """A task of which only the report is asked."""

    def __init__(self, answer: Sequence[Table] | Exception) -> None:
        self.answer = answer

    def report(self, on_progress: Callable[[int, int], None]) -> Sequence[Table]:
        on_progress(1, 1)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def config() -> RunConfig:
    return configure(definition.load("galaxy_shape", "mini"), seed=7)


NO_ENERGY = {"none": "no sensors"}


def keep(
    task: object, config: RunConfig, folder: Path, energy: Mapping[str, object] = NO_ENERGY
) -> Recorder:
    recorder = Recorder()
    keep_report(task, config, ResultFolder(folder, folder), energy, recorder)
    return recorder


def test_tables_are_shown_and_kept(config: RunConfig, tmp_path: Path) -> None:
    recorder = keep(Reporting([TABLE]), config, tmp_path)
    assert recorder.tables == [TABLE]
    assert f"run 0: report: {tmp_path / 'report_0.json'}" in recorder.messages
    (kept,) = tmp_path.iterdir()  # no temporary file is left
    content = json.loads(kept.read_text())
    assert content["seed"] == 7
    assert content["energy"] == NO_ENERGY
    assert content["definition_digest"] == config.definition.digest
    (table,) = content["tables"]
    assert table["rows"][0] == dict(TABLE.rows[0])
    assert table["rows"][2]["e1"] is None
    assert table["rows"][2]["e1_error"] is None


@pytest.mark.parametrize(
    ("error", "stdout", "stderr"),
    [
        (UserError("no data there"), "no report: no data there; the run counts", ""),
        (OSError(28, "No space left"), "No space left; the run counts", ""),
        (ZeroDivisionError("a bug"), "see above; the run counts", "Traceback"),
    ],
)
def test_failure_is_reported_and_costs_nothing(
    error: Exception, stdout: str, stderr: str,
    config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert stdout in keep(Reporting(error), config, tmp_path).text
    assert capsys.readouterr().err.startswith(stderr)
    assert not list(tmp_path.iterdir())


def test_task_without_a_report_says_nothing(config: RunConfig, tmp_path: Path) -> None:
    assert keep(object(), config, tmp_path).messages == []


def test_energy_is_kept_without_tables(config: RunConfig, tmp_path: Path) -> None:
    keep(object(), config, tmp_path, {"joules": 12.5})
    content = json.loads((tmp_path / "report_0.json").read_text())
    assert content["energy"] == {"joules": 12.5}
    assert content["tables"] == []
