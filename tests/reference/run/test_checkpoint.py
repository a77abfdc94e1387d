"""Checkpoints: whole or not there, and never code."""

import errno
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from cepheid.reference.run import checkpoint
from cepheid.rules.errors import UserError
from tests import assert_refused


def test_round_trip_and_what_is_missing_or_truncated(tmp_path: Path) -> None:
    state = {"model": {"w": torch.arange(3.0)}, "samples": 12}
    checkpoint.save(tmp_path / "a" / "b.pt", state)
    loaded = checkpoint.load(tmp_path / "a" / "b.pt")
    assert loaded["samples"] == 12
    assert torch.equal(loaded["model"]["w"], state["model"]["w"])  # type: ignore[index]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b.pt"]
    assert_refused("no such checkpoint", checkpoint.load, tmp_path / "none.pt")
    checkpoint.save(tmp_path / "cut.pt", {"w": torch.zeros(1000)})
    whole = (tmp_path / "cut.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(whole[: len(whole) // 2])
    assert_refused("not a checkpoint", checkpoint.load, tmp_path / "cut.pt")


class Hostile:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("run by unpickling",))


def test_code_in_a_checkpoint_is_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"model": Hostile()}, tmp_path / "hostile.pt")
    with pytest.raises(UserError, match="not a checkpoint") as refused:
        checkpoint.load(tmp_path / "hostile.pt")
    assert "weights_only" not in str(refused.value)
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Hostile()))
    assert_refused("not a checkpoint", checkpoint.load, tmp_path / "plain.pt")
    assert capsys.readouterr().out == ""


def test_arrays_need_no_framework(tmp_path: Path) -> None:
    state = {"model": {"norm/gamma": np.arange(3.0)}, "samples": 12}
    checkpoint.save(tmp_path / "b.npz", state)
    loaded = checkpoint.load(tmp_path / "b.npz")
    assert int(loaded["samples"]) == 12
    assert np.array_equal(loaded["model"]["norm/gamma"], np.arange(3.0))
    whole = (tmp_path / "b.npz").read_bytes()
    (tmp_path / "b.npz").write_bytes(whole[: len(whole) // 2])
    assert_refused("not a checkpoint", checkpoint.load, tmp_path / "b.npz")
    np.savez(tmp_path / "hostile.npz", model=np.array([Hostile()], dtype=object))
    assert_refused("not a checkpoint", checkpoint.load, tmp_path / "hostile.npz")


@pytest.mark.parametrize("name", ["torch.load", "numpy.load"])
def test_what_the_system_refuses_is_no_damage(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "x")

    monkeypatch.setattr(name, refuse)
    path = tmp_path / ("b.pt" if name == "torch.load" else "b.npz")
    assert_refused(r"cannot be read .*EIO; fix: the disk", checkpoint.load, path)
