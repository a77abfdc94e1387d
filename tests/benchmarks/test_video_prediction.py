"""video_prediction: networks that grow, their losses and measures; contract tests have the rest."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cepheid.benchmarks.video_prediction import model, pictures, plain, quality
from cepheid.benchmarks.video_prediction.growth import Hyperparameters, Stage
from cepheid.benchmarks.video_prediction.losses import BOTH
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.hyperparameters import parse_hyperparameters
from cepheid.rules import definition
from cepheid.rules.errors import UserError
from tests import tasks

FULL, MINI = (definition.load("video_prediction", scale) for scale in ("full", "mini"))
TRAIN, EVALUATION = 16, 4
FADING, STABLE = 16, 0  # samples


def configuration(data_root: Path, *overrides: str, **values: int) -> RunConfig:
    """A task with small networks that grow after two steps of 8, and fade for two."""
    hyperparameters = dict(MINI.hyperparameters)
    for name, value in {
        "growth_fading_samples": FADING, "growth_stable_samples": STABLE, **values
    }.items():  # fmt: skip
        hyperparameters[name] = dataclasses.replace(hyperparameters[name], default=value)
    chosen = dataclasses.replace(MINI, hyperparameters=MappingProxyType(hyperparameters))
    settings, samples = ("threads=1", *overrides), (TRAIN, EVALUATION)
    narrow: dict[str, Any] = {"widths": [4, 4], "critic_widths": [4, 4]}
    return tasks.configure_small(chosen, data_root, *settings, samples=samples, **narrow)


def copy_parameters(network: nn.Module) -> Tensor:
    weights: Tensor = torch.cat([each.detach().flatten() for each in network.parameters()])
    return weights


def build_to_train(config: RunConfig, make: tasks.Make = tasks.create) -> Any:
    task = tasks.build(config, make=make)
    task.model.train()
    return task


def find_stage(task: Any) -> Stage:
    """Return the stage of the next step."""
    stage: Stage = task.shape.find_stage(task.samples)
    return stage


# Growth -------------------------------------------------------------------------------------------

# Parameters of the published code (github.com/TUM-LMF/FutureGAN at 9428c7d), by the side of frames.
PUBLISHED = {
    8: ((33_562_115, 35_663_878), (65_554_433, 66_605_569)),
    16: ((49_817_091, 51_918_854), (73_681_921, 74_733_057)),
    32: ((66_072_067, 68_173_830), (81_809_409, 82_860_545)),
    64: ((70_659_075, 72_760_838), (84_102_913, 85_154_049)),
    128: ((71_805_699, 72_332_294), (84_676_225, 84_939_649)),
}


@pytest.mark.parametrize("side", PUBLISHED)
def test_each_stage_has_the_parameters_of_the_published_code(side: int) -> None:
    sizes, number = model.Sizes.parse(FULL.model), {4 << k: k for k in range(6)}[side]
    with torch.device("meta"):
        networks: tuple[nn.Module, nn.Module] = (
            model.Generator(sizes, FULL.model["widths"]),
            model.Critic(sizes, FULL.model["critic_widths"], span=1),
        )
    for network, frames, published in zip(networks, (6, 12), PUBLISHED[side], strict=True):
        for alpha, expected in zip((1.0, 0.5), published, strict=True):
            reached: dict[str, int] = {}
            watch(network, reached)
            network(torch.empty(1, 3, frames, side, side, device="meta"), Stage(number, alpha))
            assert sum(reached.values()) == expected


def watch(network: nn.Module, reached: dict[str, int]) -> None:
    """Note the parameters of the layers that compute something, by name."""
    for name, module in network.named_modules():
        own = sum(parameter.numel() for parameter in module.parameters(recurse=False))
        module.register_forward_pre_hook(lambda *_, name=name, own=own: reached.update({name: own}))


def test_stages_follow_from_samples() -> None:
    values = parse_hyperparameters(
        Hyperparameters, {key: rule.default for key, rule in FULL.hyperparameters.items()}
    )
    half = values.growth_fading_samples
    assert values.find_stage(0, 6) == Stage(0)
    assert values.find_stage(2 * half - 1, 6) == Stage(0)
    assert values.find_stage(2 * half, 6) == Stage(1, 0.0)
    assert values.find_stage(2 * half + half // 3, 6).alpha == pytest.approx(1 / 3)
    assert values.find_stage(3 * half, 6) == Stage(1)
    assert values.find_stage(10**9, 6) == Stage(5)
    assert 12 * half == 2_900 * FULL.train_samples  # the epochs of the PRACE guide


def test_a_new_stage_begins_where_the_old_one_ended_and_fades_in_with_its_details() -> None:
    decoder = model.Generator(model.Sizes.parse(MINI.model), MINI.model["widths"]).decoder
    maps = torch.randn(2, MINI.model["widths"][0], 6, 8, 8)
    old, half, new = (decoder(maps, Stage(1, alpha)) for alpha in (0.0, 0.5, 1.0))
    torch.testing.assert_close(half, (old + new) / 2)
    with torch.no_grad():
        for parameter in (*decoder.stages[0].parameters(), *decoder.to_frames[1].parameters()):
            parameter.mul_(2)
    torch.testing.assert_close(decoder(maps, Stage(1, 0.0)), old)
    assert not torch.allclose(decoder(maps, Stage(1)), new)
    frames = torch.randn(1, 1, 2, 16, 16)
    assert torch.equal(model.show(frames, 16, Stage(1)), frames)
    coarse = model.show(frames, 8, Stage(0))
    assert torch.equal(coarse, frames[..., ::2, ::2])
    torch.testing.assert_close(model.show(frames, 16, Stage(1, 0.0)), model.enlarge(coarse, 2))
    torch.testing.assert_close(
        model.show(frames, 16, Stage(1, 0.25)), 0.75 * model.enlarge(coarse, 2) + 0.25 * frames
    )


def test_a_new_stage_has_a_fresh_optimizer_and_a_lower_rate(data_root: Path) -> None:
    task = build_to_train(configuration(data_root))
    rates = []
    for _ in range(3):
        before = find_stage(task).number
        task.step()
        rates.append(task.optimizer.param_groups[0]["lr"])
        assert bool(task.optimizer.state) == (find_stage(task).number == before)
    assert rates == pytest.approx([0.01, 0.01, 0.0087], rel=1e-4)


def test_going_on_after_loading_in_the_middle_of_fading_equals_going_on(data_root: Path) -> None:
    config = configuration(data_root)
    straight, broken_off, resumed = (tasks.build(config) for _ in range(3))
    tasks.train(straight, 32)
    tasks.train(broken_off, 24)
    assert find_stage(broken_off).is_fading
    resumed.restore(broken_off.state())
    tasks.train(resumed, 32)
    assert torch.equal(tasks.flatten_weights(straight), tasks.flatten_weights(resumed))


def test_all_stages_are_tried_before_the_clock_runs(data_root: Path) -> None:
    task = build_to_train(configuration(data_root))
    seen = []
    task.model.generator.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[1]))
    task.warm_up()
    assert {Stage(0), Stage(1, 0.0), Stage(1)} <= set(seen)
    assert task.samples == 0
    assert not task.optimizer.state


# Losses -------------------------------------------------------------------------------------------


def test_a_step_trains_the_critic_then_the_generator_through_it(data_root: Path) -> None:
    task = build_to_train(configuration(data_root))
    networks = (task.model.critic, task.model.generator)
    before = [copy_parameters(network) for network in networks]
    changed = []

    def note(*_: object) -> None:
        after = [copy_parameters(network) for network in networks]
        changed.append([not torch.equal(*pair) for pair in zip(before, after, strict=True)])

    task.optimizer.register_step_post_hook(note)
    task.step()
    assert changed == [[True, False], [True, True]]
    assert task.samples == 8


def test_only_layers_to_come_get_no_gradient_but_zero(data_root: Path) -> None:
    task = build_to_train(configuration(data_root))
    _, gradients = tasks.run_step(task)
    assert gradients.keys() == dict(task.model.named_parameters()).keys()
    for name, gradient in gradients.items():
        is_to_come = ".stages." in name or ".fading." in name or "frames.1." in name
        assert is_to_come == (not gradient.any()), name


def test_the_penalty_counts_whole_clips_and_a_mixture_has_a_share_for_each() -> None:
    clips = torch.randn(4, 1, 2, 3, 3)
    weights = torch.ones(18) / 18**0.5
    for factor, expected in ((1.0, 0.0), (3.0, 4.0)):
        found = model.compute_penalty(lambda x: x.flatten(1) @ (factor * weights), clips)  # noqa: B023
        assert float(found) == pytest.approx(expected, abs=1e-5)
    real, false = torch.zeros(2, 1, 1, 2, 2), torch.ones(2, 1, 1, 2, 2)
    mixed = model.mix(real, false, torch.tensor([0.25, 0.5]))
    assert mixed.flatten(1).tolist() == [[0.25] * 4, [0.5] * 4]


@pytest.mark.parametrize("samples", [0, 24, 64])
def test_the_plain_network_has_the_same_losses_and_gradients(data_root: Path, samples: int) -> None:
    config = configuration(data_root, gan_penalty_interval_steps=1)
    found = []
    for make in (tasks.create, plain.WORKLOAD):
        task = build_to_train(config, make)
        task.samples = samples
        for network in BOTH:  # as in a step, without its updates
            task.model.next.trained = (network,)
            error = tasks.run_backward(task)
            parameters = task.model.get_submodule(network).parameters()
            found.append(
                (error, [each.grad.clone() for each in parameters if each.grad is not None])
            )
    for (error, gradients), (plain_error, plain_gradients) in zip(
        found[:2], found[2:], strict=True
    ):
        assert error == pytest.approx(plain_error, rel=1e-5)
        for gradient, other in zip(gradients, plain_gradients, strict=True):
            assert (gradient - other).norm() <= 0.02 * other.norm() + 1e-5  # a kink may flip


def test_two_ranks_grow_as_one_does(data_root: Path) -> None:
    tasks.assert_ranks_agree(
        2, configuration, data_root, "opt_base_learning_rate=0.002", tolerance=1e-3
    )


def test_a_share_that_is_no_multiple_of_the_span_is_refused(data_root: Path) -> None:
    config = configuration(data_root, gan_deviation_span=3)
    with pytest.raises(UserError, match="gan_deviation_span is 3: a rank has 8 samples"):
        tasks.create(config)


# Quality ------------------------------------------------------------------------------------------


def find_quality(predicted: Tensor, true: Tensor) -> Mapping[str, float]:
    return quality.summarize(quality.measure(true, predicted, true), len(true))


@pytest.mark.parametrize("frame", [0, -1])
def test_blur_and_noise_in_a_frame_miss_the_sharpness_of_the_truth(frame: int) -> None:
    true = torch.rand(60, 1, 6, 16, 16)
    perfect = find_quality(true, true)
    assert [perfect[name] for name in ("ssim", "sharpness")] == pytest.approx([1, 1])
    assert perfect["clip_distance"] == pytest.approx(0, abs=1e-4)
    assert find_quality(0 * true, true)["sharpness"] == 0
    assert math.isnan(find_quality(math.nan * true, true)["clip_distance"])
    limit = next(each.target for each in MINI.quality if each.metric == "sharpness_error")
    blurred, noisy = true.clone(), true.clone()
    blurred[:, :, frame] = (true + true.roll(1, -1) + true.roll(1, -2))[:, :, frame] / 3
    noisy[:, :, frame] += torch.randn(true.shape)[:, :, frame]
    for worse, sign in ((blurred, -1), (noisy, 1)):
        found = find_quality(worse, true)
        assert found["sharpness"] == pytest.approx(1 + sign * found["sharpness_error"])
        assert found["sharpness_error"] > limit


def test_clips_that_others_follow_are_as_near_as_others_and_frames_in_reverse_are_far() -> None:
    moving = torch.rand(200, 1, 1, 16, 16).expand(-1, -1, 8, -1, -1).clone()
    for time in range(8):
        moving[:, :, time] = moving[:, :, 0].roll(time, -1) * (1 - time / 16)
    one, other = moving.split(100)
    of_others = find_quality(one[:, :, 2:], other[:, :, 2:])["clip_distance"]
    reversed_ = find_quality(one[:, :, 2:].flip(2), one[:, :, 2:])["clip_distance"]
    assert 3 * of_others < reversed_


def test_the_distance_adds_up_over_batches() -> None:
    true = torch.rand(80, 1, 6, 16, 16)
    predicted = true.roll(1, -1) / 2 + true / 2
    parts = [
        quality.measure(*(each[half] for each in (true, predicted, true)))
        for half in (slice(30), slice(30, None))
    ]
    whole = find_quality(predicted, true)
    assert quality.summarize(parts[0] + parts[1], 80) == pytest.approx(whole)


def test_an_evaluation_takes_averaged_weights_and_training_goes_on_with_its_own(
    data_root: Path,
) -> None:
    task = build_to_train(configuration(data_root, gan_average_half_life_samples=8))
    generator, averages = task.model.generator, task.model.averages
    weights = []
    for _ in range(2):
        task.step()
        weights.append(copy_parameters(generator))
        expected = sum(weights) / len(weights)
        average = torch.cat([each.flatten() for each in averages.buffers()])
        torch.testing.assert_close(average, expected)
    with averages.stand_in(generator):
        assert torch.equal(copy_parameters(generator), average)
    task.evaluate()
    assert torch.equal(copy_parameters(generator), weights[-1])


def test_a_moment_of_the_picture_shows_the_current_frames(data_root: Path) -> None:
    assert len(build_to_train(configuration(data_root)).pictures()) == 12
    clip = np.arange(4, dtype=np.uint8).reshape(4, 1, 1, 1) * 50
    early, late = (
        pictures.compose(clip[:2], clip[2:], clip[2:] + 10, moment=moment) for moment in (0, 3)
    )
    assert early.shape == late.shape
    inside, beside = pictures.GAP, 2 * pictures.SIDE_PIXELS + 4 * pictures.GAP
    assert (early[inside, inside] == 0).all()  # the large truth is the first frame
    assert (late[inside, inside] == 150).all()
    assert (late[inside, beside + inside] == 160).all()  # beside it the prediction
