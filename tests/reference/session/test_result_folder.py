"""The output folder: what is there is kept, compared and completed, never overwritten."""

import json
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from cepheid.reference.machine import system
from cepheid.reference.run.config import RunConfig, configure
from cepheid.reference.run.execution import Execution
from cepheid.reference.session.result_folder import ResultFolder, open_result_folder
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.rules import definition
from cepheid.rules.errors import UserError

RUN_STOP = '\n:::MLLOG {{"key": "run_stop", "metadata": {{{metadata}}}}}\n'
SUCCESS = RUN_STOP.format(metadata='"status": "success"')
READ = ':::MLLOG {{"key": "data_read", "value": "{digest}", "metadata": {{}}}}\n'
ALONE = TorchRanks(0, 1, torch.device("cpu"))
MINI = definition.load("galaxy_shape", "mini")


@pytest.fixture
def config() -> RunConfig:
    return configure(MINI, seed=1).name_system("local", "box", "code")


def open_folder(root: Path, config: RunConfig) -> AbstractContextManager[ResultFolder]:
    """Open the folder of a result below ``root``, described as this machine."""
    described = system.describe("local", ALONE) | {"system": config.system}
    return open_result_folder(root, config, described)


def fill(root: Path, config: RunConfig, log: str = "") -> Path:
    """Open the folder once, with a log of run 0 if there is a text; return its path."""
    with open_folder(root, config) as folder:
        if log:
            folder.log(0).write_text(log)
        return folder.path


def assert_refused(root: Path, config: RunConfig, message: str) -> None:
    """Require a user's mistake where the folder is opened."""
    with pytest.raises(UserError, match=message), open_folder(root, config):
        pass


def test_missing_runs_are_the_holes(config: RunConfig, tmp_path: Path) -> None:
    with open_folder(tmp_path, config) as folder:
        folder.log(1).write_text("done")
        assert folder.present() == [1]
        assert folder.missing(3) == [0, 2]
    assert (tmp_path / "systems" / "box.json").is_file()


def test_later_runs_compute_as_the_first_one_did(config: RunConfig, tmp_path: Path) -> None:
    settled = Execution("bf16", "on", "2", {"precision": "fastest step: fp32 51 ms, bf16 44 ms"})
    value = {"precision": "bfloat16", "execution": asdict(settled)}
    line = f":::MLLOG {json.dumps({'key': 'implementation', 'value': value})}\n"
    with open_folder(tmp_path, config) as folder:
        assert folder.execution(config.execution) == config.execution
        (folder.path / "interrupted_0_0.txt").write_text(line.replace("bf16", "fp32"))
        assert folder.execution(config.execution) == config.execution
        folder.log(1).write_text(line)
        assert folder.execution(config.execution) == settled


def test_another_or_a_damaged_configuration_is_refused_once_there_is_a_run(
    config: RunConfig, tmp_path: Path
) -> None:
    other = configure(MINI, seed=1, overrides=["global_batch_size=16"])
    other = other.name_system("local", "box", "code")
    fill(tmp_path, config)
    kept = json.loads((fill(tmp_path, other) / "configuration.json").read_text())
    assert kept["hyperparameters"]["global_batch_size"] == 16
    path = fill(tmp_path, other, "done")
    assert_refused(tmp_path, config, r"global_batch_size.*choose another --output")
    assert fill(tmp_path, other) == path
    assert (path / "result_0.txt").read_text() == "done"
    (path / "configuration.json").write_text("{")
    assert_refused(tmp_path, other, r"configuration\.json: damaged")


@pytest.mark.parametrize(
    ("end", "name"),
    [
        ("", "interrupted_result_0_0.txt"),  # the machine stopped
        (SUCCESS + READ.format(digest="d"), "result_0.txt"),
        (SUCCESS + READ.format(digest="e"), "interrupted_result_0_0.txt"),  # other data (T27)
        (SUCCESS, "interrupted_result_0_0.txt"),  # the machine stopped before they were digested
        (RUN_STOP.format(metadata='"status": "aborted", "reason": "too slow"'), "result_0.txt"),
        (RUN_STOP.format(metadata='"interrupted": true'), "interrupted_result_0_0.txt"),
    ],
)
def test_a_log_that_nobody_closed_gets_its_name_at_the_next_start(
    config: RunConfig, tmp_path: Path, end: str, name: str
) -> None:
    path = fill(tmp_path, config)
    text = READ.format(digest="d").replace("_read", "_digest") + "half a log" + end
    (path / "result_0.txt.partial").write_text(text)
    with open_folder(tmp_path, config) as folder:
        assert [path.name for path in folder.left_over] == [name]
        kept = folder.left_over[0].read_text()
        assert kept == text or (end == SUCCESS and kept.startswith(text) and "not digested" in kept)
        assert folder.missing(1) == ([] if name == "result_0.txt" else [0])


@pytest.mark.parametrize("text", ["[]", "null", "\x00"])
def test_a_system_file_that_holds_something_else_is_refused(
    config: RunConfig, tmp_path: Path, text: str
) -> None:
    (tmp_path / "systems").mkdir()
    (tmp_path / "systems" / "box.json").write_text(text)
    assert_refused(tmp_path, config, r"box\.json: damaged .* move it away")


def test_a_corrected_description_is_kept(config: RunConfig, tmp_path: Path) -> None:
    fill(tmp_path, config)
    path = tmp_path / "systems" / "box.json"
    path.write_text(path.read_text().replace("FILL IN: what", "liquid cooled; what"))
    fill(tmp_path, config)
    assert "liquid cooled" in path.read_text()


@pytest.mark.parametrize(
    ("text", "message"), [("{", "not a JSON file"), ('{"submitter": "x"}', "required property")]
)
def test_bad_system_description(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "system.json").write_text(text)
    with pytest.raises(UserError, match=message):
        system.read_description(tmp_path / "system.json")
