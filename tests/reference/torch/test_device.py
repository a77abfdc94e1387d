"""Which device a rank takes: what torch finds, unless CEPHEID_DEVICE says otherwise."""

import pytest

torch = pytest.importorskip("torch", reason="needs the extra torch")

from cepheid.reference.torch import backend, device
from cepheid.reference.torch.ranks.distributed import start_ranks
from cepheid.rules.errors import UserError


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Let torch find two GPUs; return the list of those that become current."""
    taken: list[object] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    return taken


def test_ranks_take_gpus_in_turn(two_gpus: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    for asked in ("", "cuda"):
        monkeypatch.setenv("CEPHEID_DEVICE", asked)
        taken = [device.choose_device(local_rank) for local_rank in range(3)]
        assert taken == [torch.device("cuda", place) for place in (0, 1, 0)]
    assert two_gpus == [*taken, *taken]
    assert device.name_backend(taken[0]) == "nccl"


def test_processors_may_be_asked_for_beside_a_gpu(
    two_gpus: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CEPHEID_DEVICE", "cpu")
    with start_ranks() as ranks:
        assert ranks.device.type == "cpu"
    assert not device.identify_accelerators()
    assert not two_gpus
    assert device.name_backend(ranks.device) == "gloo"


@pytest.mark.parametrize("kind", ["cpu", "meta"])
def test_peaks_of_any_device_are_measured(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "SECONDS", 0.0)
    monkeypatch.setattr(backend, "SIDE", {"cpu": 8, "accelerator": 8})
    monkeypatch.setattr(backend, "COPIED_BYTES", {"cpu": 2**10, "accelerator": 2**10})
    peaks = backend.measure_peaks(torch.device(kind))
    assert peaks["peak_tflops"]["fp32"]["measured"] > 0
    assert peaks["memory_gb_per_second"]["measured"] > 0


@pytest.mark.parametrize(
    ("asked", "message"),
    [("cuda", "CEPHEID_DEVICE=cuda, but torch .* can use no GPU"), ("tpu", "expected cpu or cuda")],
)
def test_a_device_that_is_not_there_is_refused(
    asked: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CEPHEID_DEVICE", asked)
    with pytest.raises(UserError, match=message), start_ranks():
        pass
