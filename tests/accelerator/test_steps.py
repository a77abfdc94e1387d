"""Steps and predictions on noise: no hidden waits, all precisions, graphs, memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from cepheid.measure.engine.byte_counts import weigh_task
from cepheid.measure.engine.noise import open_noise
from cepheid.reference.torch import warm_up
from cepheid.reference.torch.devices.kinds import find_device
from cepheid.reference.torch.flow.sampling import make_eager_sampler
from tests.accelerator import PLACE, PLACES, SAMPLES, TRAINING, Place, build, on_accelerator, train

pytestmark = pytest.mark.filterwarnings("ignore")

# Others draw noise from the generator of the device.
DETERMINISTIC = [name for name in TRAINING if name not in ("galaxy_bnn", "galaxy_vae")]
HOST_DECIDES = {"kfac"}  # in its update: which factors are stale (measure/rehearsal/allowed.yaml)


def only_on_accelerator(test: Any) -> Any:
    """Mark a test that compares with a processor."""
    for mark in on_accelerator:
        test = mark(test)
    return test


@contextmanager
def refuse_waiting(place: Place) -> Iterator[None]:
    """Raise an error where the host waits for the device, if torch can tell."""
    set_mode = getattr(getattr(torch, place.type), "set_sync_debug_mode", lambda mode: None)
    set_mode("error")
    try:
        yield
    finally:
        set_mode("default")


EACH = [
    pytest.param(name, PLACE, id=f"{name}-accelerator", marks=on_accelerator) for name in TRAINING
]


@pytest.mark.parametrize(
    ("name", "place"), [pytest.param(TRAINING[0], torch.device("cpu"), id=TRAINING[0]), *EACH]
)
def test_no_step_waits_for_the_device(name: str, place: Place) -> None:
    """What the first step allocates may wait; the second must not."""
    task = build(name, place)
    train(task, 1)
    noise = task.draw_noise(SAMPLES)
    task.draw_noise = lambda count: noise  # it comes from the host, as no batch of a run does
    with refuse_waiting(place):
        task.step_on_noise(task.execution)
        if name not in HOST_DECIDES:
            task.apply_gradients()


@only_on_accelerator
@pytest.mark.parametrize("name", DETERMINISTIC)
def test_one_step_is_that_of_a_processor(name: str) -> None:
    """precision=fp32 multiplies exactly, also in convolutions and LSTMs."""
    of_processor, own = (train(build(name, place), 1) for place in (torch.device("cpu"), PLACE))
    for one, other in zip(of_processor, own, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@only_on_accelerator
@pytest.mark.parametrize("name", TRAINING)
def test_predictions_are_finite(name: str) -> None:
    task = build(name, PLACE)
    task.model.eval()
    with torch.no_grad():
        task.predict_noise()
    task.device.synchronize()
    assert all(bool(value.isfinite().all()) for value in task.model.state_dict().values())


HALF = [  # processors emulate float16: tests of loss scaling show it on a small network
    pytest.param("bf16", torch.device("cpu"), id="bf16"),
    *(pytest.param(half, PLACE, id=f"{half}-accelerator", marks=on_accelerator)
      for half in ("bf16", "fp16")),
]  # fmt: skip


@pytest.mark.parametrize(("precision", "place"), HALF)
def test_steps_in_half_precision_are_finite(precision: str, place: Place) -> None:
    weights = train(build("resnet50", place, f"precision={precision}"), 2)
    assert all(bool(each.isfinite().all()) for each in weights)


@only_on_accelerator
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])  # the second captures graphs
def test_compiled_and_captured_losses_are_eager_ones(mode: str) -> None:
    task = build("galaxy_shape", PLACE)
    batch = task.draw_noise(SAMPLES)
    expected = task.compute_loss(*batch).detach()
    compiled = torch.compile(task.compute_loss, mode=mode)
    for _ in range(3):  # warm-up, capture, replay
        torch.testing.assert_close(compiled(*batch).detach(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("place", PLACES)
def test_a_captured_graph_repeats_its_operations(place: Place) -> None:
    values, total = torch.ones(3, device=place), torch.zeros(3, device=place)

    def add() -> None:
        total.add_(values)

    run = find_device(place).capture(add)
    total.zero_()
    for _ in range(3):
        run()
    assert total.tolist() == [3.0] * 3


@pytest.mark.parametrize("place", PLACES)
def test_the_flow_samples_what_a_processor_samples(place: Place) -> None:
    torch.manual_seed(0)
    flow = build("galaxy_vae", torch.device("cpu")).model.flow
    noise = torch.randn(5, flow.layers[0].degrees[0].numel())
    expected = make_eager_sampler(flow)(noise)
    sampled = make_eager_sampler(flow.to(place))(noise.to(place))
    torch.testing.assert_close(sampled.cpu(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("place", PLACES)
def test_a_copy_from_pinned_memory_has_its_values(place: Place) -> None:
    task = build("galaxy_shape", place)
    pinned = task.device.empty_pinned(1000)
    pinned.copy_(torch.arange(1000.0))
    assert pinned.is_pinned() == task.device.pins
    moved = task.to_device(pinned)
    assert moved.device.type == place.type
    assert torch.equal(task.device.fetch(moved), torch.arange(1000.0))


@only_on_accelerator
def test_an_overflow_skips_the_update_and_lowers_the_scale() -> None:
    task = build("resnet50", PLACE, "precision=fp16")
    before = [parameter.detach().clone() for parameter in task.model.parameters()]
    scale = task.scaler.get_scale()
    task.model.train()
    task.scaler.scale(task.compute_loss(*task.draw_noise(SAMPLES))).backward()
    next(task.model.parameters()).grad.fill_(float("inf"))
    task.apply_gradients()
    assert all(map(torch.equal, before, task.model.parameters()))
    assert task.scaler.get_scale() == scale / 2


@only_on_accelerator
def test_the_peak_of_the_memory_is_counted() -> None:
    task = build("resnet50", PLACE)
    train(task, 1)
    weights = sum(each.numel() * each.element_size() for each in task.model.parameters())
    if not (peak := task.device.peak_bytes()):
        pytest.skip("the device counts no bytes (peak_bytes)")
    assert peak > 2 * weights  # with their gradients


@pytest.mark.parametrize("place", PLACES)
def test_what_a_task_needs_is_weighed_without_others(place: Place) -> None:
    def make() -> Any:
        task = build("resnet50", place)
        open_noise(task)
        return task

    (task, first), (_, second) = (weigh_task(make, find_device(place)) for _ in range(2))
    if place.type != "cpu" and not task.device.peak_bytes():
        pytest.skip("the device counts no bytes (peak_bytes)")
    weights = sum(each.numel() * each.element_size() for each in task.model.parameters())
    assert 3 * weights < second < 1.5 * first  # with gradients and momenta


@pytest.mark.parametrize("place", PLACES)
def test_what_does_not_fit_into_memory_is_taken_in_pieces(place: Place) -> None:
    task = build("galaxy_shape", place, "micro_batch=auto", "global_batch_size=8")
    compute = task.accumulate

    def accumulate(pieces: Any, is_alone: bool) -> Any:
        if task.piece_size > 2:
            torch.empty(2**52, device=place)  # 16 PiB
        return compute(pieces, is_alone=is_alone)

    task.accumulate = accumulate
    chosen = warm_up.fit_pieces(task)
    assert chosen.micro_batch == "2"
    assert "more memory than there is" in chosen.because["micro_batch"]
