"""The task of galaxy_generation: its weights, its precision, and the plain code beside it."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load

from cepheid.benchmarks.galaxy_generation import plain, task, training, weights, weights_file
from cepheid.measure.engine.trainings import Training, train
from cepheid.reference.run import checkpoint, generate
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.execution import Execution
from cepheid.reference.run.log import RunLogWriter
from cepheid.reference.run.progress import ignore_progress
from cepheid.reference.torch.devices.kinds import Processor
from cepheid.reference.torch.flow.sampling import NoCompilerError
from cepheid.reference.torch.ranks.distributed import TorchRanks, start_ranks
from cepheid.reference.torch.trainer import Trainer
from cepheid.rules import definition, evidence
from cepheid.rules.errors import UserError
from cepheid.rules.evidence import Evidence
from cepheid.tools.audit import remake
from tests import assert_refused
from tests.distributed import on_ranks
from tests.tasks import ALONE, build, create
from tests.test_benchmark_contract import GENERATION, configuration

pytest.importorskip("galsim", reason="needs the extra galsim")


@pytest.fixture(scope="module")
def config(data_root: Path) -> RunConfig:
    """A few galaxies, a few images at a time."""
    return configuration("galaxy_generation", data_root)


def test_the_plain_code_makes_the_same_images(config: RunConfig) -> None:
    ours, plainly = (make(config, ALONE) for make in (task.GalaxyGeneration, plain.make))
    assert ours.build() == plainly.build()
    first, _ = plainly.model.decoder.blocks[0].parameters()
    assert first.is_contiguous()
    assert next(iter(ours.model.decoder.blocks.parameters())).stride() != first.stride()
    latents, as_written = (made.sample(12, 0) for made in (ours, plainly))
    torch.testing.assert_close(latents, as_written, rtol=1e-4, atol=1e-4)
    images, again = ours.decode(latents), plainly.decode(latents)
    torch.testing.assert_close(images, again, rtol=1e-3, atol=1e-4)


def test_any_accelerator_decodes_as_many_together_and_ranks_divide_them(config: RunConfig) -> None:
    on_meta, on_cpu = (
        task.GalaxyGeneration(config, TorchRanks(0, 1, torch.device(kind)))
        for kind in ("meta", "cpu")
    )
    assert on_meta.decoded_together > on_cpu.decoded_together
    with pytest.raises(UserError, match=r"12 images cannot be shared evenly by 5 ranks; fix: "):
        task.GalaxyGeneration(config, TorchRanks(4, 5, torch.device("cpu")))


@pytest.mark.parametrize("asked", ["auto", "3"])
def test_parts_that_are_decoded_at_once_make_the_same_images(
    config: RunConfig, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Processor, "images_together", 5)
    settings = dataclasses.replace(config.execution, threads="3", own={task.AT_ONCE: asked})
    made = task.GalaxyGeneration(dataclasses.replace(config, execution=settings), ALONE)
    made.build()
    latents = made.sample(12, 0)
    in_turn = made.decode(latents).clone()
    try:
        made.warm_up(1)
        assert made.execution.own[task.AT_ONCE] in ("1", "3")
        assert asked == "auto" or made.parts_at_once == 3
        made.execution = made.execution.with_setting(task.AT_ONCE, "3")
        at_once = made.decode(latents)
        assert made.implementation()["threads_per_rank"] == 3
        assert made.implementation()["decoding"].endswith(" images together on each of 3 threads")
    finally:
        torch.set_num_threads(1)
    torch.testing.assert_close(at_once, in_turn, rtol=1e-3, atol=1e-4)


def test_results_without_parts_at_once_decode_in_turn_and_cpp_draws_the_same(
    config: RunConfig,
) -> None:
    earlier = dataclasses.replace(config.execution, own={})
    made = task.GalaxyGeneration(dataclasses.replace(config, execution=earlier), ALONE)
    made.build()
    made.warm_up(1)
    assert made.parts_at_once == 1
    assert made.execution.own == {}
    eager = made.sample(12, 0)
    try:
        native = made.native_sampler(made.draw_noise("generated images", 12, 0))
    except NoCompilerError as error:
        pytest.skip(str(error))
    torch.testing.assert_close(native, eager, rtol=1e-4, atol=1e-4)


def test_compiling_that_fails_is_told_or_refused(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(flow: object) -> None:
        raise NoCompilerError("no g++ here")

    monkeypatch.setattr(task, "make_native_sampler", fails)
    made = task.GalaxyGeneration(config, ALONE)
    made.build()
    made.use_execution(Execution("fp32", "on", "1"))
    assert made._no_compiler == "no g++ here"
    assert made.sampling_note == "torch"
    insisting = dataclasses.replace(config, execution=Execution("fp32", "on", "1"))
    made = task.GalaxyGeneration(insisting, ALONE)
    assert_refused("compile=off runs without", made.build)


@pytest.mark.parametrize("largest", [0.0, 10.0])
def test_bfloat16_only_where_images_stay_as_they_are(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, largest: float
) -> None:
    monkeypatch.setattr(task, "LARGEST_DISTANCE", largest)
    monkeypatch.setattr(Processor, "list_precisions", lambda device: ("bf16", "fp32"))
    made = task.GalaxyGeneration(config, ALONE)
    made.build()
    chosen = made._check_bfloat16(Execution(), made.sample(12, 0))
    assert chosen.precision == ("auto" if largest else "fp32")
    if not largest:
        assert "bf16 moves" in chosen.because["precision"]


def test_weights_are_read_as_they_were_written(
    config: RunConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(weights_file, "FOLDER", tmp_path)
    state = dict(weights.make_untrained(config).tensors) | {"encoder.mean.bias": torch.zeros(2)}
    checkpoint.save(tmp_path / "run_0.pt", {"model": state})
    assert weights.main([str(tmp_path / "run_0.pt")]) == 0
    digest = capsys.readouterr().out.split()[-1]
    found = weights.read_weights(weights_file.find_path("mini"), digest)
    assert found.digest == digest
    assert found.tensors.keys() == state.keys() - {"encoder.mean.bias"}
    for key, value in found.tensors.items():
        assert torch.equal(value, state[key]), key
    size = weights_file.find_path("mini").stat().st_size
    assert weights.main([str(tmp_path / "run_0.pt"), "--store", "float16"]) == 0
    assert weights_file.find_path("mini").stat().st_size < 0.55 * size
    halved = weights.read_weights(weights_file.find_path("mini"), None).tensors
    for key, value in halved.items():
        assert value.dtype is torch.float32
        assert torch.equal(value, state[key].half().float()), key


def test_a_training_for_weights_goes_on_where_it_was_interrupted(
    data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configuration("galaxy_vae", data_root)
    timing = dataclasses.replace(config.definition.timing, eval_every_samples=16, max_samples=32)
    short = dataclasses.replace(config.definition, timing=timing)
    monkeypatch.setattr(
        training, "_configure", lambda arguments: dataclasses.replace(config, definition=short)
    )
    monkeypatch.setattr(weights_file, "FOLDER", tmp_path / "weights")
    evaluate, evaluations = Trainer.evaluate, 0

    def interrupt_second(task: Trainer) -> dict[str, float]:
        nonlocal evaluations
        evaluations += 1
        if evaluations == 2:
            raise KeyboardInterrupt
        return evaluate(task)

    found = []
    arguments = ["--data", str(data_root), "--samples", "32", "--states"]
    assert training.main([*arguments, str(tmp_path / "straight")]) == 0
    found.append(weights_file.find_path("mini").read_bytes())
    monkeypatch.setattr(Trainer, "evaluate", interrupt_second)
    states = tmp_path / "states"
    with pytest.raises(KeyboardInterrupt):
        training.main([*arguments, str(states)])
    assert training.main([*arguments, str(states)]) == 0
    assert evaluations == 3  # of the first block only once
    found.append(weights_file.find_path("mini").read_bytes())
    assert found[0] == found[1]
    (kept,) = states.iterdir()
    with pytest.raises(UserError, match=r"or with another --set; fix: move it away"):
        training.main([*arguments, str(states), "--set", "opt_base_learning_rate=1e-3"])
    checkpoint.save(kept, {**checkpoint.load(kept), "definition_digest": "0"})
    assert_refused(r"by another definition or", training.main, [*arguments, str(states)])


def test_a_training_for_weights_takes_settings_of_galaxy_vae() -> None:
    parsed = training.make_parser().parse_args(
        ["--samples", "16000", "--set", "opt_base_learning_rate=1.5e-3"]
    )
    chosen = training._configure(parsed)
    assert chosen.hyperparameters["opt_base_learning_rate"] == 1.5e-3
    assert chosen.hyperparameters["opt_learning_rate_decay_samples"] == 16_000


def test_weights_that_cannot_be_used_are_refused_in_one_line(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_file, "FOLDER", tmp_path)
    assert_refused("missing", weights.read_published, config)
    assert weights.read_or_make(config).digest == weights_file.UNTRAINED
    weights_file.find_path("mini").write_bytes(b"no weights")
    assert_refused("T25", weights.read_or_make, config)
    with pytest.raises(UserError, match="not a safetensors file"):
        weights.read_published(dataclasses.replace(config, division="open"))
    assert_refused("give one of galaxy_vae", weights.select_parts, {"trunk.weight": torch.zeros(1)})


def test_weights_of_another_network_are_refused(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = weights_file.find_path("mini").read_bytes()
    monkeypatch.setattr(weights_file, "FOLDER", tmp_path)
    weights_file.find_path("full").write_bytes(published)
    full = dataclasses.replace(
        config, definition=definition.load("galaxy_generation", "full"), division="open"
    )
    with pytest.raises(UserError, match=r"of another network: of decoder\..* same scale"):
        task.GalaxyGeneration(full, ALONE)
    assert_refused("restore it, as with `git checkout`", task.GalaxyGeneration, config, ALONE)
    state = load(published)
    with pytest.raises(UserError, match="--scale full: these are weights of another network"):
        weights.write_weights("full", state)
    assert weights_file.find_path("full").read_bytes() == published
    weights.write_weights("mini", state, "float16")
    assert weights_file.find_path("mini").is_file()


def _generate_on_this_rank(data_root: Path) -> tuple[list[Any], Mapping[str, float], Any]:
    """Return this rank's images at each number, the quality of a run, and its times."""
    with start_ranks() as ranks:
        made: Any = create(configuration("galaxy_generation", data_root), ranks)
        outcome = generate.run(made.definition, made, made.config, RunLogWriter(None))
        parts = [made.decode(made.sample(count, 1)).numpy().copy() for count in made.maker.counts]
    return parts, outcome.quality, outcome.times


@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_images_do_not_depend_on_the_number_of_ranks(
    config: RunConfig, world_size: int
) -> None:
    alone, quality, _ = _generate_on_this_rank(config.data_root)
    on_each = on_ranks(world_size, _generate_on_this_rank, config.data_root)
    for number, images in enumerate(alone):
        shares = [parts[number] for parts, _, _ in on_each]
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        np.testing.assert_allclose(np.concatenate(shares), images, rtol=1e-3, atol=1e-4)
    assert [len(parts[0]) for parts, _, _ in on_each] == [1] + [0] * (world_size - 1)
    for _, found, times in on_each:
        assert found == on_each[0][1]
        assert found == pytest.approx(quality, rel=1e-3, abs=1e-4)
        assert [taken.images for taken in times] == [1, 3, 12]


def test_judged_images_can_be_made_again(config: RunConfig) -> None:
    made: Any = build(config)
    images = made.decode(made.sample(GENERATION.counts[-1], GENERATION.repetitions[-1] - 1))
    logged, rows = made.project(images), remake.choose_images([0.5, 1.5, 2.5])
    assert len(logged) == GENERATION.counts[-1]
    assert sorted(rows) == [0, 1, 2]

    def differ(numbers: list[float], seed: int) -> float:
        rows = range(len(numbers))
        return remake.measure_difference(numbers, rows, seed, config.definition, config.data_root)

    assert differ(logged, config.seed) < 0.01
    assert differ(logged, config.seed + 1) > remake.DIFFERENCE_MAX
    assert differ([1.01 * number for number in logged], config.seed) < remake.DIFFERENCE_MAX
    assert differ([2 * number for number in logged], config.seed) > remake.DIFFERENCE_MAX


def test_evidence_of_a_run_is_its_quality_when_all_images_are_made(config: RunConfig) -> None:
    curve = train(Training("no_flow", "no_flow", config, create), ALONE, ignore_progress)
    ((images, quality),) = curve.evaluations
    assert images == GENERATION.images
    assert quality.keys() >= {target.metric for target in config.definition.quality}
    assert curve.measured["sampling"] == "torch"
    assert "because" not in curve.measured["execution"]  # times, which are others in every run
    short = dataclasses.replace(curve, evaluations=((images - 1, quality),))
    for one, is_whole in ((curve, True), (short, False)):
        chosen = dataclasses.replace(
            config.definition,
            quality=tuple(
                dataclasses.replace(target, target=9e9 if target.better == "higher" else -9e9)
                for target in config.definition.quality
            ),
        )
        found = evidence.find_problems(Evidence(chosen.digest, (one,)), chosen, ("no_flow",))
        assert ("full budget" not in str(found)) == is_whole


def test_pictures_show_real_and_generated_galaxies(config: RunConfig) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra site")
    made = build(config)
    made.evaluate(made.decode(made.sample(12, 0)))
    made.decode(made.sample(12, 1))  # what was judged is shown, whatever came after it
    above, below = made.pictures().subfigs
    assert (len(above.axes), len(below.axes)) == (len(made.maker.held_out), 12)
    assert np.array_equal(made.maker.judged, made.decode(made.sample(12, 0)))
