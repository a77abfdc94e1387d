"""What every benchmark must satisfy. A failure says in plain words what a new benchmark lacks.

The suite runs over the directory listing of ``benchmarks/`` and knows nothing about any of them:
each is shrunk to a few dozen samples at the smallest scale it defines, the rest is as shipped. What
holds for one kind only (``task.kind``) is asked of the benchmarks of that kind.
"""

import dataclasses
import functools
import importlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the reference implementations need the extra torch")

from cepheid.compliance.checks import Place, check_log
from cepheid.compliance.read.log.runlog import read
from cepheid.reference.run import checkpoint
from cepheid.reference.run.config import RunConfig, configure
from cepheid.reference.run.execution import A_NUMBER, EXECUTION_CHOICES
from cepheid.reference.run.log import RunLogWriter
from cepheid.reference.run.report import Reports
from cepheid.reference.run.task import run_task
from cepheid.reference.session.artifacts import Pictures
from cepheid.reference.torch import trainer
from cepheid.reference.torch.parallel.stale import delay_gradients
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.rules import definition, evidence, rcp, rounds
from cepheid.rules.definition import Definition, Generation
from cepheid.rules.digests import UNCONFIRMED
from cepheid.rules.errors import UserError
from cepheid.rules.events import is_number
from cepheid.rules.hyperparameters import Hyperparameter, Value
from tests import tasks, tiny
from tests.prepared import prepare
from tests.tasks import (
    BATCH,
    EVALUATION,
    TRAIN,
    assert_alike,
    assert_ranks_agree,
    assert_same,
    build,
    copy_weights,
    count_calls,
    look_at_step,
    run_step,
    train,
)

NAMES = definition.names()
SCALED = [(name, scale) for name in NAMES for scale in definition.scales(name)]
TRAINING, GENERATING = (
    [name for name in NAMES if definition.load(name, definition.scales(name)[0]).kind == kind]
    for kind in ("train", "generate")
)
LARGE = 10_000_000  # parameters
FEW = (2 * BATCH, 5)  # samples, for what is tried with many settings
PRECISIONS = EXECUTION_CHOICES["precision"]
GENERATION = Generation(counts=(1, 3, 12), repetitions=(3, 2, 2), warm_up_images=4)
# The network of resnet50, of which every layer has factors to invert.
NARROWER: Mapping[str, Mapping[str, int]] = {"kfac": {"width": 4, "parameters": 96_782}}


def load_small(name: str) -> Definition:
    """The benchmark at mini scale (else the first it has) with a few dozen samples."""
    scales = definition.scales(name)
    scale = "mini" if "mini" in scales else scales[0]
    chosen = tasks.shrink(definition.load(name, scale), **NARROWER.get(name, {}))
    if chosen.kind == "generate":
        return dataclasses.replace(chosen, generation=GENERATION)
    timing = dataclasses.replace(chosen.timing, eval_every_samples=32, max_samples=64)
    return dataclasses.replace(chosen, timing=timing)


def install_easy(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``small(name)`` the definition for everybody, the checker too, with targets that any
    quality reaches: its tests look at the log, not at the learning."""
    chosen = load_small(name)
    sizes: dict[str, Any] = {"data": {key: chosen.data[key] for key in tiny.SIZES}}
    if chosen.generation:
        sizes["generation"] = {
            "counts": list(GENERATION.counts),
            "repetitions": list(GENERATION.repetitions),
            "warm_up_images": GENERATION.warm_up_images,
        }
    else:
        sizes["timing"] = tiny.TIMING
    changed = ("weight_draws", *NARROWER.get(name, ()))
    sizes["model"] = {key: chosen.model[key] for key in changed if key in chosen.model}
    tiny.install(folder, monkeypatch, name, chosen.scale, reachable=True, **sizes)


def configuration(name: str, data_root: Path, *overrides: str, seed: int = 3) -> RunConfig:
    """Batch 8, eager, fp32 unless overridden; data prepared."""
    chosen = load_small(name)
    prepare(chosen.data, data_root)
    settings = ["compile=off", "precision=fp32", *overrides]
    if chosen.kind == "train":
        settings.append(f"global_batch_size={BATCH}")
    config = configure(chosen, overrides=settings, data_root=data_root, seed=seed)
    return config.name_system("acme", "box", "c" * 64, "")


def assert_run_passes(task: Any, config: RunConfig, folder: Path) -> None:
    """Require a run that reaches its targets, and a log without errors."""
    log = RunLogWriter(folder / "result_0.txt")
    assert run_task(task, config, log).reached
    path = log.close()
    assert path is not None
    # Not errors here: a seed that was given, and data that are not the reference's.
    findings = check_log(read(path), Place(rounds.CURRENT), rounds.load())
    # Nor is a pause of a busy machine, which is long beside the few repetitions of this test.
    errors = [str(f) for f in findings if f.is_error and f.code != "T24.untimed"]
    assert not errors, "\n".join(errors)


def produce(task: Any) -> Any:
    """What a run ends with: the images of the last repetition, else the loss."""
    chosen = task.config.definition
    if chosen.kind == "train":
        return train(task, 16)
    return task.decode(task.sample(chosen.generation.counts[-1], 0))


def evaluate(task: Any, result: Any) -> Mapping[str, float]:
    """The quality of what ``used`` returned."""
    generates = task.config.definition.kind == "generate"
    quality: Mapping[str, float] = task.evaluate(result) if generates else task.evaluate()
    return quality


@pytest.mark.parametrize("name", NAMES)
def test_folder_is_complete(name: str) -> None:
    folder = definition.BENCHMARKS / name
    for file in [
        "benchmark.yaml",
        "model.py",
        "task.py",
        "broken.py",
        "evidence.json",
        "README.md",
    ]:
        says = f"benchmarks/{name}/{file} is missing; docs/new-benchmark.md says what it is for"
        assert (folder / file).is_file(), says


@pytest.mark.parametrize(("name", "scale"), SCALED)
def test_definition_is_valid(name: str, scale: str) -> None:
    chosen = definition.load(name, scale)
    defaults = {key: rule.default for key, rule in chosen.hyperparameters.items()}
    for rule in chosen.hyperparameters.values():
        problem = rule.find_problem(rule.default) or (
            rule.find_conflict(rule.default, defaults) if is_number(rule.default) else None
        )
        assert not problem, f"{name}: the default of {rule.name} breaks its own rule: {problem}"
    if chosen.kind == "train":
        assert "global_batch_size" in chosen.hyperparameters, f"{name}: no global_batch_size"
    dropped = chosen.runs.drop_fastest + chosen.runs.drop_slowest
    assert chosen.runs.required > dropped + 1, f"{name}: too few runs for an interval"
    assert chosen.summary, f"{name}: scales.{scale}.summary must say in a sentence what runs"
    unexplained = {target.metric for target in chosen.quality} - set(chosen.meanings)
    assert not unexplained, f"{name}: `meanings` does not say what {unexplained} means"


def list_refused_values(rule: Hyperparameter) -> list[Value]:
    """Values of the type of a hyperparameter that the closed division refuses."""
    default = rule.default
    values: list[Value] = ["no_such_choice"]
    if isinstance(default, bool):
        values = [not default]
    elif not isinstance(default, str):
        values = [default + 1, 2 * default + 1, -1, 0, 10**9]
    return [value for value in values if rule.find_problem(value)]


@pytest.mark.parametrize(("name", "scale"), SCALED)
def test_closed_refuses_what_the_definition_does_not_allow(name: str, scale: str) -> None:
    chosen = definition.load(name, scale)
    overrides = [
        f"{rule.name}={value}"
        for rule in chosen.hyperparameters.values()
        for value in list_refused_values(rule)
    ]
    overrides += [
        f"{key}={choices[1]}" for key, choices in chosen.variants.items() if A_NUMBER not in choices
    ]
    for override in overrides:
        with pytest.raises(UserError, match="closed division") as raised:
            configure(chosen, overrides=[override])
        assert override.partition("=")[0] in str(raised.value), f"{name}: {override}"
    for rule in chosen.hyperparameters.values():
        for value in rule.open.choices:
            config = configure(chosen, division="open", overrides=[f"{rule.name}={value}"])
            assert config.hyperparameters[rule.name] == value


# Of compilers, threads and several ranks, which have tests of their own, or need data of the user.
OTHER_SETTINGS = {
    *("compile", "threads", "micro_batch", "catalogue"),
    *("all_reduce", "weight_update", "spatial_partitions", "pipeline", "tensor_ranks"),
}


def list_settings(chosen: Definition) -> list[str]:
    """Return the execution settings and variants other than the defaults; of numbers one each."""
    overrides = []
    for key, choices in {"precision": PRECISIONS, **chosen.execution, **chosen.variants}.items():
        others = [choice for choice in choices[1:] if choice not in ("auto", "fp32")]
        if A_NUMBER in others:
            others = ["4"]
        elif others[0].replace(".", "").isdecimal():
            others = others[:1]
        overrides += [f"{key}={choice}" for choice in others if key not in OTHER_SETTINGS]
    return overrides


def find_refusal(name: str, data_root: Path, overrides: list[str]) -> str:
    """Return why these settings do not fit each other, or an empty string."""
    try:
        tasks.create(tasks.configure_small(name, data_root, *overrides, samples=FEW))
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", TRAINING)
def test_every_setting_trains(name: str, data_root: Path) -> None:
    """As many at once as fit each other, so that there are few trainings."""
    waiting = list_settings(load_small(name))
    while waiting:
        together: dict[str, str] = {}  # by key
        for override in waiting:
            key = override.partition("=")[0]
            if key not in together:
                refusal = find_refusal(name, data_root, [*together.values(), override])
                if not refusal:
                    together[key] = override
        assert together, f"{name}: {waiting}: {refusal}"
        config = tasks.configure_small(name, data_root, *together.values(), samples=FEW)
        quality = tasks.build_and_train(config, samples=BATCH).evaluate()
        assert all(map(math.isfinite, quality.values())), f"{name}: {together}: {quality}"
        waiting = [override for override in waiting if override not in together.values()]


PUBLISHED = {  # parameters of full scale; those of kfac are timm's of resnet50d
    "galaxy_bnn": 2_693_457, "galaxy_shape": 1_500_817, "gnmt": 160_671_297, "kfac": 25_576_264,
    "mask_rcnn": 44_347_573, "resnet50": 25_557_032, "ssd": 19_972_534, "transformer": 210_804_736,
}  # fmt: skip


@pytest.mark.parametrize(("name", "scale"), SCALED)
def test_parameters_are_as_declared(name: str, scale: str, data_root: Path) -> None:
    """Large networks on the meta device, where they need neither memory nor time."""
    chosen = dataclasses.replace(definition.load(name, scale), data=load_small(name).data)
    prepare(chosen.data, data_root)
    settings = ["compile=off", "precision=fp32"]
    config = configure(chosen, overrides=settings, data_root=data_root, seed=1)
    device = torch.device("meta" if chosen.model["parameters"] > LARGE else "cpu")
    try:
        with device:
            count = tasks.create(config, TorchRanks(0, 1, device)).build()
    except UserError as error:
        if not chosen.provisional:
            raise
        pytest.skip(f"{name} at {scale}: {error}")  # weights that are still to be trained
    declared = chosen.model["parameters"]
    assert count == declared, f"{name} at {scale} has {count:,} parameters, declares {declared:,}"
    assert scale != "full" or declared == PUBLISHED.get(name, declared)


@pytest.mark.parametrize("name", TRAINING)
def test_every_parameter_gets_a_finite_gradient_and_the_loss_falls(
    name: str, data_root: Path
) -> None:
    """It falls on samples that are seen again and again."""
    task = build(configuration(name, data_root))
    _, gradients = run_step(task)
    for key, _ in task.model.named_parameters():
        assert key in gradients, f"{name}: {key} gets no gradient"
        assert gradients[key].isfinite().all(), f"{name}: the gradient of {key} is not finite"
    losses = [train(task, TRAIN)]
    assert math.isfinite(losses[0]), f"{name}: the first loss is {losses[0]}"
    while max(losses[-3:]) >= losses[0]:  # until three epochs in a row lie below the first
        assert len(losses) < 20, f"{name}: the loss does not fall ({losses})"
        losses.append(train(task, (len(losses) + 1) * TRAIN))


@functools.lru_cache(maxsize=2)  # the tests of a benchmark follow each other
def train_straight(name: str, data_root: Path, samples: int) -> Any:
    """Return a task after so many samples in one go, for tests that only look at it."""
    return tasks.build_and_train(configuration(name, data_root), samples=samples)


@pytest.mark.parametrize("name", TRAINING)
def test_the_same_seed_gives_the_same_bits_also_after_warming_up(
    name: str, data_root: Path
) -> None:
    warm, other = (build(configuration(name, data_root, seed=seed)) for seed in (3, 4))
    before = copy_weights(warm)
    warm.warm_up()
    assert_same(before, copy_weights(warm), f"{name}: weights before and after warming up")
    train(warm, 16)
    usual = copy_weights(train_straight(name, data_root, 16))
    assert_same(usual, copy_weights(warm), f"{name}: training with and without warming up")
    assert any(not torch.equal(before[key], value) for key, value in copy_weights(other).items()), (
        f"{name}: the seed changes nothing"
    )


@pytest.mark.parametrize("name", TRAINING)
def test_gradients_may_be_old_and_those_that_are_not_change_no_bit(
    name: str, data_root: Path
) -> None:
    config, usual = configuration(name, data_root), train_straight(name, data_root, 16)
    new, old = (
        copy_weights(tasks.build_and_train(config, samples=16, make=make))
        for make in (delay_gradients(tasks.create, delay) for delay in (0, 1))
    )
    weights = copy_weights(usual)
    assert_same(weights, new, f"{name}: training, and training with gradients of delay 0")
    assert any(not torch.equal(weights[key], old[key]) for key in weights), (
        f"{name}: the second update does not notice that its gradient is one update old"
    )


@pytest.mark.parametrize("name", TRAINING)
def test_evaluation_does_not_depend_on_the_batch_size(name: str, data_root: Path) -> None:
    task, results = train_straight(name, data_root, 32), []
    for size in (8, 64):  # in unequal batches, and in one
        task.evaluation_batch = size
        results.append(task.evaluate())
    assert results[1] == pytest.approx(results[0], rel=1e-5, abs=1e-6), (
        f"{name}: the quality depends on how the evaluation set is cut into batches"
    )


@pytest.mark.parametrize("name", TRAINING)
def test_saving_loading_and_going_on_equals_going_on(
    name: str, data_root: Path, tmp_path: Path
) -> None:
    straight, broken_off = (train_straight(name, data_root, samples) for samples in (32, 16))
    resumed = build(configuration(name, data_root))
    checkpoint.save(tmp_path / "half.pt", broken_off.state())
    resumed.restore(checkpoint.load(tmp_path / "half.pt"))
    train(resumed, 32)
    assert_same(copy_weights(straight), copy_weights(resumed), f"{name}: going on after loading")
    resumed.evaluation_batch = straight.evaluation_batch
    assert straight.evaluate() == resumed.evaluate()


@pytest.mark.parametrize("name", TRAINING)
def test_a_step_in_pieces_is_the_step(name: str, data_root: Path) -> None:
    """Or no pieces are possible, and the message says what is."""
    whole = build(configuration(name, data_root, "micro_batch=whole"))
    if len(whole.piece_rule.list_sizes()) == 1:
        with pytest.raises(UserError, match="micro_batch to 8, or leave it out"):
            build(configuration(name, data_root, "micro_batch=2"))
        return
    pieces = build(configuration(name, data_root, "micro_batch=2"))
    calls, (loss, values) = count_calls(whole, look_at_step)
    calls_of_pieces, (loss_of_pieces, values_of_pieces) = count_calls(pieces, look_at_step)
    assert calls_of_pieces >= 2 * calls, f"{name}: the batch is not cut"
    assert loss_of_pieces == pytest.approx(loss, rel=1e-5), f"{name}: another loss in pieces"
    assert_alike(values, values_of_pieces, f"{name} in pieces")


GIVEN = [  # those whose training starts from given weights at some scale
    name
    for name in TRAINING
    if any("given_weights" in definition.load(name, s).model for s in definition.scales(name))
]


def give_weights(config: RunConfig, file: Path, digest: str) -> RunConfig:
    """Let a run start from the weights of a file."""
    given = {"file": str(file), "digest": digest}
    chosen = tasks.shrink(config.definition, given_weights=given)
    return dataclasses.replace(config, definition=chosen)


@pytest.mark.parametrize("name", GIVEN)
def test_a_run_starts_from_given_weights_or_is_refused_before_its_clock_runs(
    name: str, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "warm_up", lambda task: None)  # other tests look at it
    config, path = configuration(name, data_root), tmp_path / "given.pth"
    network = build(config).model
    given = getattr(network, "backbone", network).state_dict()
    for value in given.values():
        value.copy_(2 * value)
    torch.save(given, path)
    task = build(give_weights(config, path, UNCONFIRMED))
    task.warm_up()
    last = getattr(task.shape, "last_layer", "none")  # which is the run's own
    found = getattr(task.model, "backbone", task.model).state_dict()
    own = {key for key, value in found.items() if not torch.equal(value, given[key])}
    assert all(key.startswith(last) for key in own), f"{name}: {own} are not the given weights"
    for file, digest, says in (
        (path, "0" * 64, "its SHA-256 is"),
        (Path("absent.pth"), UNCONFIRMED, r"absent\.pth: the training starts from these weights"),
    ):
        with pytest.raises(UserError, match=says):
            build(give_weights(config, file, digest)).warm_up()


LARGEST_RATE = 0.002  # so that what differs by rounding stays so


def configure_gently(name: str, data_root: Path) -> RunConfig:
    """The same with a low rate, and with a seed with which no slope is near its kink."""
    usual = load_small(name).hyperparameters["opt_base_learning_rate"].default
    rate = f"opt_base_learning_rate={min(float(usual), LARGEST_RATE)}"
    return configuration(name, data_root, rate, seed=5)


# On two cores four processes wait for each other for long, and show little that two do not.
@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", TRAINING)
def test_several_ranks_are_equal_to_one(name: str, world_size: int, data_root: Path) -> None:
    assert EVALUATION % world_size
    assert_ranks_agree(world_size, configure_gently, name, data_root)


@pytest.mark.parametrize("name", NAMES)
def test_a_whole_run_passes_the_checker_and_its_report_changes_nothing(
    name: str, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_easy(name, tmp_path / "benchmarks", monkeypatch)
    if name == "kfac":  # it times ten updates, which show no more
        monkeypatch.setattr("cepheid.benchmarks.kfac.after_run.PLAIN_TURNS", 1)
    config = configuration(name, data_root)
    task = tasks.create(config)
    assert_run_passes(task, config, tmp_path)
    if isinstance(task, Reports):  # the quality of the others says it all
        assert_report_is_sound(name, task)
    if isinstance(task, Pictures):
        assert_pictures_show_something(name, task)


def assert_report_is_sound(name: str, task: Any) -> None:
    """The report changes nothing, tells how far it is, and has a value in every cell."""
    before = copy_weights(task)
    told: list[tuple[int, int]] = []
    tables = task.report(lambda done, total: told.append((done, total)))
    assert_same(before, copy_weights(task), f"{name}: weights before and after the report")
    assert told, f"{name}: the report does not tell how far it is"
    assert told[-1][0] == told[-1][1], f"{name}: the report does not tell that it is done"
    for table in tables:
        assert table.rows, f"{name}: the table {table.title} is empty"
        for row in table.rows:
            assert row.keys() == table.rows[0].keys(), f"{name}: {table.title} is ragged"
            numbers = [value for value in row.values() if not isinstance(value, str)]
            assert all(map(math.isfinite, numbers)), f"{name}: {table.title}: {row}"


def assert_pictures_show_something(name: str, task: Pictures) -> None:
    """Require something drawn in each picture."""
    figures = task.pictures()
    for figure in figures if isinstance(figures, Sequence) else [figures]:
        drawn = [
            artist for axes in figure.axes for artist in axes.get_children() if artist.get_visible()
        ]
        assert figure.axes
        assert drawn, f"{name}: a picture shows nothing"


@pytest.mark.slow  # five to ten tasks for each benchmark
@pytest.mark.parametrize("name", NAMES)
def test_broken_variants_still_run(name: str, data_root: Path) -> None:
    config = configuration(name, data_root)
    variants = importlib.import_module(f"cepheid.benchmarks.{name}.broken").VARIANTS
    for variant, create in variants.items():
        task = build(config, make=create)
        result = produce(task)
        assert torch.as_tensor(result).isfinite().all(), f"{name}: {variant}: not finite"
        quality = evaluate(task, result)
        assert all(map(math.isfinite, quality.values())), f"{name}: {variant}: {quality}"


@pytest.mark.parametrize(("name", "scale"), SCALED)
def test_evidence_supports_the_targets(name: str, scale: str) -> None:
    chosen = definition.load(name, scale)
    if chosen.provisional:
        pytest.skip(f"{name} at {scale} declares its targets provisional: {chosen.provisional}")
    recorded = evidence.load(chosen)
    again = f"`cepheid measure targets {name} --scale {scale}` measures it"
    assert recorded is not None, f"{name} at {scale}: no evidence for this definition; {again}"
    variants = tuple(importlib.import_module(f"cepheid.benchmarks.{name}.broken").VARIANTS)
    assert len(variants) >= 2, f"{name} declares too few broken variants"
    assert not (found := evidence.find_problems(recorded, chosen, variants)), f"{found}; {again}"


@pytest.mark.parametrize(
    ("name", "scale"), [(name, scale) for name, scale in SCALED if name in TRAINING]
)
def test_reference_convergence_points_are_complete(name: str, scale: str) -> None:
    chosen = definition.load(name, scale)
    points = rcp.load(name, scale)
    measures = f"`cepheid rcp {name} --scale {scale} --batch-size B` measures them"
    if points is None:
        pytest.skip(f"{name} at {scale}: reference convergence points are not yet measured")
    assert not (found := rcp.find_problems(points, chosen)), f"{found}; {measures}"


# Benchmarks that generate -------------------------------------------------------------------------


def generate_images(task: Any, count: int, repetition: int = 0) -> Any:
    """A copy of the images of a repetition."""
    return task.decode(task.sample(count, repetition)).clone()


@pytest.mark.parametrize("name", GENERATING)
def test_as_many_finite_images_as_asked_for_however_many_at_a_time(
    name: str, data_root: Path
) -> None:
    task = build(configuration(name, data_root))
    for count in GENERATION.counts:
        made = generate_images(task, count)
        assert len(made) == count, f"{name}: {len(made)} images where {count} were asked for"
        assert torch.isfinite(made).all(), f"{name}: images are not finite"
        assert made.device.type == "cpu", f"{name}: images stay on the device"
    latents = task.sample(12, 0)
    together = task.decode(latents).clone()
    alone = torch.cat([task.decode(one).clone() for one in latents.split(1)])
    says = f"{name}: images depend on how many are made at a time"
    assert torch.allclose(alone, together, rtol=1e-4, atol=1e-4), says


@pytest.mark.parametrize("name", GENERATING)
def test_each_seed_count_and_repetition_draws_noise_of_its_own_also_after_warming_up(
    name: str, data_root: Path
) -> None:
    task, warm = (build(configuration(name, data_root)) for _ in range(2))
    other = build(configuration(name, data_root, seed=4))
    warm.warm_up(GENERATION.warm_up_images)
    says = f"{name}: weights before and after warming up"
    assert_same(copy_weights(task), copy_weights(warm), says)
    here = generate_images(task, 3)
    says = f"{name}: two runs with one seed differ, of which one has warmed up"
    assert torch.equal(here, generate_images(warm, 3)), says
    for what, there in (
        ("the seed", generate_images(other, 3)),
        ("the repetition", generate_images(task, 3, 1)),
        ("the number at a time", generate_images(task, 12)[:3]),
    ):
        assert not torch.isclose(here, there).all((1, 2, 3)).any(), f"{name}: not {what}"


@pytest.mark.parametrize("name", GENERATING)
def test_closed_generates_with_the_weights_of_the_definition(name: str, data_root: Path) -> None:
    config = configuration(name, data_root)
    declared = config.definition.model["weights_digest"]
    assert tasks.create(config).weights_digest == declared
    chosen = tasks.shrink(config.definition, weights_digest="f" * 64)
    with pytest.raises(UserError, match="T25"):
        tasks.create(dataclasses.replace(config, definition=chosen))
    open_ = dataclasses.replace(config, definition=chosen, division="open")
    assert tasks.create(open_).weights_digest == declared
