"""`cepheid data` as its user meets it."""

import dataclasses
from pathlib import Path
from types import MappingProxyType

import pytest

pytest.importorskip("galsim", reason="needs the extra galsim")

from rules import definition
from rules.errors import UserError
from tools import prepare_data


@pytest.fixture(autouse=True)
def few_galaxies(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = definition.load("galaxy_shape", "mini")
    sizes = {"train_samples": 6, "evaluation_samples": 2}
    small = dataclasses.replace(
        chosen, data=MappingProxyType({**chosen.data, **sizes}), data_digest=None
    )
    monkeypatch.setattr(definition, "load", lambda name, scale: small)


def test_other_data_than_the_references_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = dataclasses.replace(definition.load("galaxy_shape", "mini"), data_digest="0" * 64)
    monkeypatch.setattr(definition, "load", lambda name, scale: other)
    assert prepare_data.main(["galaxy_shape", "--data", str(tmp_path)]) == 1
    assert "not the reference's data" in capsys.readouterr().out


def test_prepares_then_verifies_then_finds_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["galaxy_shape", "--scale", "mini", "--data", str(tmp_path)]
    with pytest.raises(UserError, match="no such folder"):
        prepare_data.main([*arguments, "--verify"])
    assert prepare_data.main(arguments) == 0
    assert "8 samples of galaxies" in capsys.readouterr().out
    assert prepare_data.main([*arguments, "--verify"]) == 0
    (stamps,) = tmp_path.glob("*/stamps.npy")
    content = bytearray(stamps.read_bytes())
    content[-5] ^= 1
    stamps.write_bytes(content)
    with pytest.raises(UserError, match=r"stamps\.npy"):
        prepare_data.main([*arguments, "--verify"])
