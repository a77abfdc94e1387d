"""chest_xray: the networks, their given weights, what closed refuses, what is broken."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from cepheid.benchmarks.chest_xray import broken, pictures, weights
from cepheid.benchmarks.chest_xray.hyperparameters import FOLDER
from cepheid.benchmarks.chest_xray.model import LAST_LAYERS, make_backbone, rename_given
from cepheid.benchmarks.chest_xray.task import WORKLOAD
from cepheid.reference.data.radiographs.auroc import METRICS
from cepheid.reference.torch.images import load_given_weights
from cepheid.reference.torch.workload import Update
from cepheid.rules import definition
from cepheid.rules.errors import UserError
from tests.reference.data.radiographs import replica
from tests.tasks import build, configure_small, create, take_batch, train
from tests.test_benchmark_contract import configuration

FULL, MINI = (definition.load("chest_xray", scale) for scale in ("full", "mini"))
OUTPUTS = {"outputs": 14}

# Networks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAST_LAYERS)
def test_the_backbones_are_the_published_ones(name: str) -> None:
    with torch.device("meta"):
        network = make_backbone(name, OUTPUTS, nn.BatchNorm2d)
        assert network(torch.empty(2, 3, 224, 224)).shape == (2, 14)
    count = sum(parameter.numel() for parameter in network.parameters())
    assert count == FULL.count_parameters({"model_backbone": name})
    own = [key for key in network.state_dict() if key.startswith(LAST_LAYERS[name])]
    assert own == [f"{LAST_LAYERS[name]}{kind}" for kind in ("weight", "bias")]


def test_the_names_are_those_of_torchvisions_files() -> None:
    """DenseNet's file is older than its names; some of each, with their shapes."""
    with torch.device("meta"):
        networks = {name: make_backbone(name, OUTPUTS, nn.BatchNorm2d) for name in LAST_LAYERS}
    shapes = {
        name: {k: tuple(v.shape) for k, v in n.state_dict().items()} for name, n in networks.items()
    }
    in_file = {
        "features.conv0.weight": (64, 3, 7, 7),
        "features.denseblock1.denselayer1.norm.1.running_mean": (64,),
        "features.denseblock1.denselayer1.conv.1.weight": (128, 64, 1, 1),
        "features.denseblock4.denselayer16.conv.2.weight": (32, 128, 3, 3),
        "features.transition3.conv.weight": (512, 1024, 1, 1),
        "features.norm5.bias": (1024,),
    }
    dense = shapes["densenet121"]
    assert {rename_given(name): shape for name, shape in in_file.items()}.items() <= dense.items()
    assert shapes["vgg16"]["features.28.weight"] == (512, 512, 3, 3)
    assert shapes["vgg16"]["classifier.0.weight"] == (4096, 25088)
    assert shapes["resnet50"]["layer4.2.conv3.weight"] == (2048, 512, 1, 1)
    assert rename_given("layer1.0.conv1.weight") == "layer1.0.conv1.weight"


def test_dense_layers_see_all_that_is_before_them() -> None:
    network = make_backbone("densenet121", OUTPUTS, nn.BatchNorm2d).eval()
    block = network.get_submodule("features.denseblock1")
    features = torch.rand(1, 64, 4, 4)
    with torch.no_grad():
        out = block(features)
    assert out.shape == (1, 64 + 6 * 32, 4, 4)
    assert torch.equal(out[:, :64], features)


# Given weights -----------------------------------------------------------------------------------


def test_mini_starts_from_the_shipped_weights_of_resnet50(data_root: Path) -> None:
    first, other = (build(configuration("chest_xray", data_root, seed=seed)) for seed in (3, 4))
    first.warm_up()
    assert first.given_digest == MINI.model["given_weights"]["digest"]
    assert torch.equal(first.model.layer4[2].conv3.weight, other.model.layer4[2].conv3.weight)
    assert not torch.equal(first.model.fc.weight, other.model.fc.weight)
    begun = build(configuration("chest_xray", data_root), make=broken.VARIANTS["random_start"])
    begun.warm_up()
    assert begun.given_digest is None
    assert not torch.equal(begun.model.conv1.weight, first.model.conv1.weight)


def test_a_run_of_resnet50_becomes_the_shipped_file(tmp_path: Path) -> None:
    network = make_backbone("resnet50", {"outputs": 10, "width": 16}, nn.BatchNorm2d)
    path = tmp_path / "weights" / "mini.safetensors"
    digest = weights.write_weights(path, network.state_dict())
    assert abs(path.stat().st_size / (FOLDER / "mini.safetensors").stat().st_size - 1) < 0.01
    fresh = make_backbone("resnet50", {"outputs": 14, "width": 16}, nn.BatchNorm2d)
    assert load_given_weights(fresh, path, digest, own="fc.") == digest
    rounded = network.get_parameter("conv1.weight").bfloat16().float()
    assert torch.equal(fresh.get_parameter("conv1.weight"), rounded)


# Settings and training ---------------------------------------------------------------------------


def test_the_last_layer_has_a_rate_of_its_own(data_root: Path) -> None:
    task = build(configuration("chest_xray", data_root, "opt_learning_rate_warmup_steps=2"))
    rates = []
    for samples in (8, 16, 12_008, 24_000):
        WORKLOAD.prepare_update(task.shape, Update(samples, task.optimizer.param_groups, task.clip))
        rates.append([group["lr"] for group in task.optimizer.param_groups])
    body = [5e-4, 1e-3, 5e-4, 0]
    assert np.array(rates) == pytest.approx(
        np.array([[rate, 10 * rate] for rate in body]), abs=1e-9
    )
    assert len(task.optimizer.param_groups[1]["params"]) == 2


def test_full_scale_trains_on_the_files_as_they_are_distributed(tmp_path: Path) -> None:
    """The network of full scale, on a replica of the data; weights must be given."""
    replica.write_replica(tmp_path)
    config = configure_small(FULL, tmp_path, "global_batch_size=4", samples=(4, 3), pixels=64)
    task = create(config)
    task.build()
    with pytest.raises(UserError, match=r"densenet121-a639ec97\.pth: the training starts from"):
        task.warm_up()
    task.open_data()
    images, labels = take_batch(task)
    assert images.shape == (4, 64, 64, 1)
    assert labels.sum() == 5
    train(task, 4)
    quality = task.evaluate()
    assert set(quality) == {"auroc", *METRICS}
    assert quality["auroc_hernia"] == 0.5  # no image of the evaluation has it


# Pictures and broken variants --------------------------------------------------------------------


def test_the_picture_shows_images_curves_and_areas(data_root: Path) -> None:
    task = build(configuration("chest_xray", data_root))
    task.evaluate()
    above, below = task.pictures().subfigs
    assert len(above.axes) == pictures.SHOWN
    assert len(below.axes[0].lines) == 15  # and the diagonal
    assert len(below.axes[1].patches) == 14
    chosen = pictures.choose_images(task.details[1])
    assert len(set(chosen.tolist())) == pictures.SHOWN


def test_broken_variants_are_broken_as_they_say(data_root: Path) -> None:
    config = configuration("chest_xray", data_root)

    count = config.definition.train_samples
    correct, permuted, shuffled = (
        build(config, make=make).data.images.labels
        for make in (create, *map(broken.VARIANTS.get, ("permuted_findings", "shuffled_labels")))
    )
    assert np.array_equal(permuted[:count, 1:], correct[:count, :-1])
    assert np.array_equal(permuted[count:], correct[count:])
    assert np.array_equal(np.sort(shuffled[:count], axis=0), np.sort(correct[:count], axis=0))
    assert not np.array_equal(shuffled[:count], correct[:count])
    task = build(config, make=broken.VARIANTS["frozen_backbone"])
    before = {name: value.clone() for name, value in task.model.named_parameters()}
    train(task, 16)
    changed = {
        name for name, value in task.model.named_parameters() if not value.equal(before[name])
    }
    assert changed == {"fc.weight", "fc.bias"}
