"""Play the parts of a run on one device: build, train, evaluate, save, restore; or generate."""

import io
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cepheid.measure.engine.fingerprint_cases import BATCH, PLAINLY, SEED, SETTINGS, configure_small
from cepheid.measure.engine.fingerprint_cases import GENERATION as FEW_IMAGES
from cepheid.measure.engine.noise import open_noise
from cepheid.measure.engine.turns import pick_create
from cepheid.reference.run.config import RunConfig, configure
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.rules import definition as definitions
from cepheid.rules.definition import Block
from cepheid.rules.host import ROOT

Enter = Callable[[str], AbstractContextManager[object]]
FIRST, STEPS, EVALUATION, GENERATION = "first step", "steps", "evaluation", "generation"
STEPS_PLAYED, STEPS_ON_NOISE = 2, 1  # after the first one, which makes what lasts
NOISE_SAMPLES = 2  # of a step at full scale
LARGEST = {"pixels": 448, "boxes_per_image": 64}
"""What a model has at most in a play: more of it is the same operations, and takes minutes."""
IMAGES = 12


@dataclass(frozen=True)
class Scene:
    """What is played: a benchmark with settings, at mini scale with data, at full scale on noise.

    ``task`` is the file of a task of the user's own, in place of the benchmark's.
    """

    benchmark: str
    scale: str = "mini"
    settings: tuple[str, ...] = ()
    task: Path | None = None

    def __str__(self) -> str:
        return " ".join((self.benchmark, *self.settings))

    @property
    def roots(self) -> tuple[Path, ...]:
        """The folders of the code whose lines are named."""
        return (ROOT, self.task.resolve().parent) if self.task else (ROOT,)

    @property
    def steps(self) -> int:
        """The number of steps that are counted."""
        if definitions.load(self.benchmark, self.scale).kind != "train":
            return 0
        return STEPS_PLAYED if self.scale == "mini" else STEPS_ON_NOISE

    def configure(self, data_root: Path) -> RunConfig:
        """Return the configuration; prepare the few samples of the mini scale."""
        if self.scale == "mini":
            return configure_small(self.benchmark, data_root, self.settings)
        definition = definitions.load(self.benchmark, self.scale)
        model = definition.model
        capped = {key: min(model[key], most) for key, most in LARGEST.items() if key in model}
        definition = replace(definition, model=MappingProxyType({**model, **capped}))
        if definition.kind == "train":
            batch = [f"global_batch_size={NOISE_SAMPLES}"]
        else:  # thousands at a time are the same operations, too
            batch, definition = [], replace(definition, generation=FEW_IMAGES)
        given = [*PLAINLY, *batch, *self.settings]
        return configure(
            definition, division="open", overrides=given, data_root=data_root, seed=SEED
        )

    def import_task(self, config: RunConfig) -> Any:
        """Return what makes the task; one that generates may have untrained weights."""
        from cepheid.benchmarks.registry import import_task
        from cepheid.reference.session.frameworks import find_own_task, import_own_task

        module = (
            import_own_task(find_own_task(self.task))
            if self.task
            else import_task(config.definition, "torch")
        )
        return pick_create(module)


def list_scenes(
    benchmark: str, scale: str, ranks: int, settings: tuple[str, ...], task: Path | None
) -> list[Scene]:
    """Return the scenes of a benchmark: with the settings, or in every way that ranks share it."""
    texts = [" ".join(settings)]
    if ranks > 1 and not settings:
        ways = [text for text in SETTINGS.get(benchmark, ()) if _WAYS.match(text)]
        texts += [f"{text}:2" if text.endswith("=mesh") else text for text in ways]
    return [Scene(benchmark, scale, tuple(text.split()), task) for text in texts]


# Two ranks in two rows are a mesh; without a number they would be one row.
_WAYS = re.compile(r"(weight_update|spatial_partitions|tensor_ranks|pipeline|all_reduce)=")


@dataclass(frozen=True)
class Outcome:
    """What was computed: losses and metrics, and weights or images as arrays."""

    values: Mapping[str, float]
    arrays: Mapping[str, np.ndarray]

    def compare(self, other: "Outcome") -> float:
        """Return the largest difference, relative to the size of a value or of an array.

        It is 0 where all bits are the same, and infinite where one has what the other has not.
        """
        if self.values.keys() != other.values.keys() or self.arrays.keys() != other.arrays.keys():
            return float("inf")
        mine, theirs = ({**each.values, **each.arrays} for each in (self, other))
        return max((_differ(mine[name], theirs[name]) for name in mine), default=0.0)


def _differ(first: Any, second: Any) -> float:
    mine, theirs = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if np.array_equal(mine, theirs, equal_nan=True):
        return 0.0
    difference = float(np.linalg.norm(np.ravel(mine - theirs)))
    size: float = max(float(np.linalg.norm(np.ravel(mine))), 1e-3 * mine.size**0.5)
    return difference / size


def play(scene: Scene, config: RunConfig, ranks: TorchRanks, enter: Enter) -> Outcome:
    """Play a scene on the device of ``ranks``, each part in the context that ``enter`` returns."""
    task = scene.import_task(config)(config, ranks)
    with enter("build"):
        task.build()
    if config.definition.kind != "train":
        return _play_generation(scene, task, enter)
    play_steps = _play_data if scene.scale == "mini" else _play_noise
    return play_steps(task, scene.steps, enter)


def _play_data(task: Any, steps: int, enter: Enter) -> Outcome:
    task.predict_noise = lambda: None  # the longest translation; the evaluation has shorter ones
    with enter("warm-up"):
        task.warm_up()
    with enter("data"):
        task.open_data()
    with enter(FIRST):
        losses = [task.train(Block(1, 0, BATCH), lambda samples: None)]
    with enter(STEPS):
        end = BATCH * (1 + steps)
        losses.append(task.train(Block(2, BATCH, end), lambda samples: None))
    with enter(EVALUATION):
        metrics = task.evaluate()
    outcome = _collect(task, {**metrics, **{f"loss {k}": loss for k, loss in enumerate(losses)}})
    with enter("checkpoint"):
        file = io.BytesIO()
        torch.save(dict(task.state()), file)
    with enter("restore"):
        file.seek(0)
        task.restore(torch.load(file, map_location="cpu", weights_only=True))
    return outcome


def _play_noise(task: Any, steps: int, enter: Enter) -> Outcome:
    """Play steps and a prediction on a few samples of noise: the dataset need not be here."""
    task.evaluation_batch = NOISE_SAMPLES
    open_noise(task)
    task.model.train()
    for part, count in ((FIRST, 1), (STEPS, steps)):
        with enter(part):
            for _ in range(count):
                task.step()
    task.model.eval()
    if not task.has_varying_shapes:  # a translation of the longest sentence takes minutes
        with enter(EVALUATION), torch.no_grad():
            task.predict_noise()
    return _collect(task, {})


def _play_generation(scene: Scene, task: Any, enter: Enter) -> Outcome:
    with enter("warm-up"):
        task.warm_up(IMAGES)
    if scene.scale == "mini":
        task.open_data()
    with enter(FIRST):
        task.decode(task.sample(IMAGES, 0))
    with enter(GENERATION):
        images = task.decode(task.sample(IMAGES, 1))
        task.synchronize()
    with enter(EVALUATION):
        metrics = task.evaluate(images) if scene.scale == "mini" else {}
    return Outcome(dict(metrics), {"images": np.array(images)})


def _collect(task: Any, values: Mapping[str, float]) -> Outcome:
    tensors: Mapping[str, Tensor] = task.model.state_dict()
    arrays = {name: each.detach().cpu().numpy() for name, each in tensors.items()}
    return Outcome({name: float(value) for name, value in values.items()}, arrays)
