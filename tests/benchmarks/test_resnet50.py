"""resnet50: the network, its schedule, what it refuses; the contract tests have the rest."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from cepheid.benchmarks.resnet50.hyperparameters import make_schedule
from cepheid.benchmarks.resnet50.model import ARCHITECTURES, ResNet, is_exempt, scale_pixels
from cepheid.measure.engine.phases import profile_steps
from cepheid.reference.optim.lars import Lars
from cepheid.reference.run.config import configure
from cepheid.rules import definition
from cepheid.rules.errors import UserError
from tests.tasks import build, build_and_train, configure_small, create

FULL, MINI = (definition.load("resnet50", scale) for scale in ("full", "mini"))
small_config = partial(configure_small, "resnet50")

# Channels of torchvision's resnet50, stage by stage: in of the first unit, inner, out, units.
STAGES = ((64, 64, 256, 3), (256, 128, 512, 4), (512, 256, 1024, 6), (1024, 512, 2048, 3))


def list_published_shapes() -> dict[str, tuple[int, ...]]:
    """The parameters of torchvision's resnet50, by the names that they have there."""
    shapes: dict[str, tuple[int, ...]] = {"conv1.weight": (64, 3, 7, 7)}
    shapes |= _norm("bn1", 64)
    for stage, (outside, inner, out, units) in enumerate(STAGES, 1):
        for unit in range(units):
            name = f"layer{stage}.{unit}"
            into = out if unit else outside
            for conv, shape in enumerate(
                [(inner, into, 1, 1), (inner, inner, 3, 3), (out, inner, 1, 1)], 1
            ):
                shapes[f"{name}.conv{conv}.weight"] = shape
                shapes |= _norm(f"{name}.bn{conv}", shape[0])
            if not unit:
                shapes[f"{name}.downsample.0.weight"] = (out, into, 1, 1)
                shapes |= _norm(f"{name}.downsample.1", out)
    return shapes | {"fc.weight": (1000, 2048), "fc.bias": (1000,)}


def _norm(name: str, channels: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (channels,), f"{name}.bias": (channels,)}


def test_parameters_and_strides_are_those_of_torchvision_and_blocks_begin_as_shortcuts() -> None:
    with torch.device("meta"):
        network: Any = ResNet()
    shapes = {name: tuple(p.shape) for name, p in network.named_parameters()}
    assert shapes == list_published_shapes()
    assert sum(p.numel() for p in network.parameters()) == 25_557_032
    exempt = sum(p.numel() for p in network.parameters() if is_exempt(p))
    assert exempt == 2 * 26_560 + 1000
    for stage in (network.layer2, network.layer3, network.layer4):
        assert [stage[0].conv1.stride, stage[0].conv2.stride] == [(1, 1), (2, 2)]
    for architecture in ARCHITECTURES.values():
        network = ResNet(7, 4, dataclasses.replace(architecture, blocks=(2,)))
        features = torch.rand(2, network.fc.in_features, 5, 5)
        blocks: Any = network.layer1
        assert torch.equal(blocks[1](features), features)


def test_basic_blocks_have_torchvisions_names() -> None:
    with torch.device("meta"):
        network = ResNet(architecture=ARCHITECTURES["resnet18"])
    unit = {
        name.removeprefix("layer2.0."): tuple(p.shape)
        for name, p in network.named_parameters()
        if name.startswith("layer2.0.")
    }
    assert unit == {
        "conv1.weight": (128, 64, 3, 3),
        **_norm("bn1", 128),
        "conv2.weight": (128, 128, 3, 3),
        **_norm("bn2", 128),
        "downsample.0.weight": (128, 64, 1, 1),
        **_norm("downsample.1", 128),
    }
    blocks: Any = network.layer2
    assert [blocks[0].conv1.stride, blocks[0].conv2.stride] == [(2, 2), (1, 1)]
    assert not any(name.startswith("layer1.0.downsample") for name, _ in network.named_parameters())


@pytest.mark.parametrize("variant", ["v1_5", "d"])
@pytest.mark.parametrize("pixels", [32, 33, 40])
@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_any_size_goes_through(variant: Any, pixels: int, name: str) -> None:
    architecture = dataclasses.replace(ARCHITECTURES[name], blocks=(1, 1, 1, 1))
    network = ResNet(classes=7, width=4, architecture=architecture, variant=variant)
    assert network(torch.zeros(2, 3, pixels, pixels)).shape == (2, 7)


def test_pixels_are_scaled_and_stay_channels_last() -> None:
    scaled = scale_pixels(torch.full((2, 4, 5, 3), 128, dtype=torch.uint8))
    assert scaled.shape == (2, 3, 4, 5)
    assert scaled.is_contiguous(memory_format=torch.channels_last)
    assert scaled[0, :, 0, 0].tolist() == pytest.approx(
        [(128 / 255 - m) / s for m, s in ((0.485, 0.229), (0.456, 0.224), (0.406, 0.225))]
    )


def test_the_schedule_of_the_full_scale_its_warm_up_and_its_evaluations() -> None:
    schedule = make_schedule(configure(FULL))
    epoch = FULL.train_samples
    rates = [schedule.rate(epoch * at) for at in (1, 2, 37)]
    assert rates == pytest.approx([5.5, 11.0, 1e-4])
    half = schedule.rate(epoch * (2 + 37) // 2)
    assert half == pytest.approx(1e-4 + (11.0 - 1e-4) / 4, rel=1e-4)
    config = configure(
        FULL, overrides=["opt_base_learning_rate=0.1", "opt_learning_rate_for_batch=256"]
    )
    schedule = make_schedule(config)
    assert schedule.start == 0.1
    assert schedule.peak == pytest.approx(1.25)
    for offset, epochs in ((0, [4, 8, 12]), (3, [3, 7, 11])):
        ends = [block.samples / epoch for block in FULL.schedule(3200, offset)]
        assert ends[:3] == pytest.approx(epochs, abs=3200 / epoch)


def test_open_allows_other_values_but_no_other_cadence_or_optimizer(tmp_path: Path) -> None:
    overrides = ["opt_momentum=0.929", "opt_momentum_form=unscaled", "model_variant=d"]
    values = configure(FULL, division="open", overrides=overrides).hyperparameters
    assert values["opt_momentum"] == 0.929
    with pytest.raises(UserError, match="both divisions"):
        configure(FULL, division="open", overrides=["eval_offset_epochs=5"])
    config = configure(FULL, division="open", overrides=["opt_name=adam"], data_root=tmp_path)
    with pytest.raises(UserError, match="sgd, lars"):
        create(config)


# Training on a few images ------------------------------------------------------------------------


def test_a_batch_beyond_all_memory_is_told_before_the_clock_runs(data_root: Path) -> None:
    # Norms over the whole batch leave no smaller pieces to try.
    batch = [f"global_batch_size={10**10}", "model_bn_span=0"]
    task = create(small_config(data_root, *batch))
    task.build()
    with pytest.raises(UserError, match="smaller global_batch_size"):
        task.warm_up()


def test_exempt_parameters_are_neither_decayed_nor_adapted(data_root: Path) -> None:
    task = build(small_config(data_root, "opt_name=lars"))
    assert isinstance(task.optimizer, Lars)
    decayed, exempt = task.optimizer.param_groups
    assert decayed["adaptive"]
    assert not exempt["adaptive"]
    assert exempt["weight_decay"] == 0
    assert all(p.ndim > 1 for p in decayed["params"])
    assert all(p.ndim == 1 for p in exempt["params"])


def test_collapsed_decay_sees_whole_images(data_root: Path) -> None:
    task = build_and_train(small_config(data_root, "opt_collapse_epoch=1"), samples=48)
    assert task.data.loader.variation.area == MINI.model["crop_area"]
    task.step()
    assert task.data.loader.variation.area == (1.0, 1.0)
    weight_decay = task.optimizer.param_groups[0]["weight_decay"]
    assert weight_decay == 2 * task.config.hyperparameters["opt_weight_decay"]


def test_the_step_profiler_accounts_for_a_step(data_root: Path) -> None:
    task = build_and_train(small_config(data_root, width=4))
    profiles = [profile_steps(task, 1).shares for _ in range(3)]
    for shares in profiles:
        assert sum(shares.values()) == pytest.approx(1)
        assert all(shares[phase] > 0 for phase in ("data", "forward", "backward", "update"))
    # Other processes may take the processor in any phase; hardly in the same one each time.
    assert 0 < min(shares["other"] for shares in profiles) < 0.2
    assert min(shares["communication"] for shares in profiles) < 0.1


# Several ranks for each image -------------------------------------------------------------------
