"""Given weights are read as they are distributed, or refused; likeness is that of scikit-image."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import nn

from cepheid.reference.torch.images import compute_psnr, compute_ssim, load_given_weights
from cepheid.rules.digests import UNCONFIRMED
from cepheid.rules.errors import UserError
from tests import assert_refused


def make_network() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2))


def write(folder: Path, state: Any) -> tuple[Path, str]:
    """The file and its digest."""
    path = folder / "given.pth"
    torch.save(state, path)
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def test_weights_and_statistics_are_those_of_the_file_also_of_old_versions(tmp_path: Path) -> None:
    given, network = make_network(), make_network()
    given.get_buffer("1.running_mean").fill_(3)
    path, digest = write(tmp_path, {**given.state_dict(), "fc.weight": torch.ones(2, 2)})
    load_given_weights(network, path, digest)
    for name, value in given.state_dict().items():
        assert torch.equal(network.state_dict()[name], value), name
    state = make_network().state_dict()
    del state["1.num_batches_tracked"]
    load_given_weights(make_network(), *write(tmp_path, state))


class Code:
    """What would run when the file is read."""

    def __reduce__(self) -> Any:
        return (print, ("code runs",))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"0.bias": None}, r"shape \(2,\) as 0.bias, got nothing"),
        ({"0.bias": torch.ones(3)}, r"shape \(2,\) as 0.bias, got \(3,\)"),
        ({"extra": Code()}, "not a file of weights"),
    ],
)
def test_other_weights_are_refused(
    change: Any, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = make_network()
    before = network.get_parameter("0.weight").detach().clone()
    path, digest = write(tmp_path, {**network.state_dict(), "0.weight": before + 1, **change})
    assert_refused(message, load_given_weights, network, path, digest)
    assert torch.equal(network.get_parameter("0.weight"), before)
    assert not capsys.readouterr().out


def test_missing_and_foreign_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.pth: .*No such file.*fix: put the file there"):
        load_given_weights(make_network(), tmp_path / "absent.pth", UNCONFIRMED)
    path, whole = write(tmp_path, make_network().state_dict())
    for digest in ("b627a593", whole[:8], whole[:63], whole.upper(), ""):
        with pytest.raises(UserError, match=f"its SHA-256 is {whole}, expected {digest};"):
            load_given_weights(make_network(), path, digest)
    assert load_given_weights(make_network(), path, UNCONFIRMED) == whole
    path, digest = write(tmp_path, [1])
    assert_refused("expected a mapping", load_given_weights, make_network(), path, digest)


def test_safetensors_are_read_and_some_layers_are_the_modules_own(tmp_path: Path) -> None:
    given, network = make_network(), make_network()
    before = network.get_parameter("0.weight").detach().clone()
    state = {f"old.{name}": value.bfloat16() for name, value in given.state_dict().items()}
    path = tmp_path / "given.safetensors"
    path.write_bytes(save({name: value.contiguous() for name, value in state.items()}))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    options: Any = {"own": "0.", "rename": lambda name: name.removeprefix("old.")}
    assert load_given_weights(network, path, digest, **options) == digest
    assert torch.equal(network.get_parameter("0.weight"), before)
    assert torch.equal(network.get_parameter("1.weight"), given.get_parameter("1.weight"))
    path.write_bytes(b"12345678{")
    assert_refused("not a file of weights", load_given_weights, network, path, UNCONFIRMED)


def test_similarity_and_signal_are_those_of_scikit_image() -> None:
    metrics = pytest.importorskip("skimage.metrics", reason="needs scikit-image")
    true, predicted = np.random.default_rng(0).random((2, 20, 24))
    predicted = 0.5 * true + 0.5 * predicted
    _, expected = metrics.structural_similarity(
        true, predicted, data_range=1, gaussian_weights=True, sigma=1.5,
        use_sample_covariance=False, full=True,
    )  # fmt: skip
    found = compute_ssim(torch.from_numpy(predicted), torch.from_numpy(true))
    assert float(found) == pytest.approx(expected.mean(), rel=1e-6)
    psnr = metrics.peak_signal_noise_ratio(true, predicted, data_range=1)
    found = compute_psnr(torch.from_numpy(predicted), torch.from_numpy(true))
    assert float(found) == pytest.approx(psnr, rel=1e-9)
