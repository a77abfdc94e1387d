"""What commands refuse before they do anything, in one line and without a trace."""

from pathlib import Path

import pytest
import yaml

pytest.importorskip("torch", reason="runs and measurements need the extra torch")
pytest.importorskip("galsim", reason="runs need the extra galsim")
pytest.importorskip("matplotlib", reason="the figures need the extra site")

from cepheid.measure.studies.scaling import scaling
from cepheid.reference.machine.accelerators import DEVICE, DEVICE_MODULE
from cepheid.rules.errors import UserError
from cepheid.tools import cli
from tests.measure.test_projection import write_folder

TABLE = yaml.safe_load(Path(__file__).with_name("wrong_use.yaml").read_text(encoding="utf-8"))
ROWS = [(command, *row) for command, rows in TABLE.items() for row in rows]


@pytest.mark.parametrize(("command", "arguments", "says"), ROWS)
def test_wrong_use_is_told_in_one_line_and_leaves_nothing(
    command: str, arguments: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaling, "_count_places", lambda: (2, "processors"))
    for variable in (DEVICE, DEVICE_MODULE):  # options set them for the processes to come
        monkeypatch.setenv(variable, "")
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    folder = str(write_folder(tmp_path)) if "FOLDER" in arguments else ""
    with pytest.raises(UserError, match=says) as raised:
        cli.main([*command.split(), *arguments.replace("FOLDER", folder).split()])
    assert "\n" not in str(raised.value)
    assert list(here.iterdir()) == []
