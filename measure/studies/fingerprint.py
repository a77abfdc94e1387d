"""The fingerprint of a benchmark: a digest of its first steps, losses and metrics in fp32.

A benchmark at mini scale is shrunk to 48 + 21 samples and trained for two blocks with batches of
8 samples, in eager fp32 on one thread, with an evaluation after each block; a benchmark that
generates draws and evaluates a few images. Two fingerprints are equal if the same seed gives the
same bits, so a record (evidence, reference points) that was made before the fingerprint changed is
stale. Processors and versions of PyTorch round differently, so a fingerprint also keeps the losses
and metrics themselves: on another machine these must agree within rounding.
"""

import dataclasses
import hashlib
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from cepheid.benchmarks.registry import import_task
from cepheid.reference import data
from cepheid.reference.run.config import RunConfig, configure
from cepheid.reference.session.frameworks import find_create
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.rules import definition as definitions
from cepheid.rules.definition import Block, Definition, Generation

SAMPLES = {"train_samples": 48, "evaluation_samples": 21}  # 21: the last batch is not full
BATCH = 8
BLOCK_SAMPLES = (24, 56)  # the second block crosses the end of the first epoch
GENERATION = Generation(counts=(1, 12), repetitions=(1, 1), warm_up_images=4)
SEED = 3
PLAINLY = ("compile=off", "precision=fp32", "threads=1")
ROUNDING = 1e-3  # relative: seven steps amplify the rounding of fp32 by less than this


@dataclass(frozen=True)
class Fingerprint:
    """The digest of a benchmark or of a case, and the losses and metrics that it covers."""

    name: str
    digest: str
    values: Mapping[str, float]


@dataclass(frozen=True)
class Record:
    """Fingerprints by benchmark, and what decides how their numbers are rounded."""

    machine: Mapping[str, str]
    fingerprints: Mapping[str, Fingerprint]

    def as_json(self) -> dict[str, Any]:
        """Return the record for ``parse_record``."""
        of_each = {
            name: {"digest": each.digest, "values": dict(each.values)}
            for name, each in self.fingerprints.items()
        }
        return {"machine": dict(self.machine), "fingerprints": of_each}


def parse_record(document: Any) -> Record:
    """Return what ``Record.as_json`` wrote. Raises ValueError, KeyError or TypeError if it is not.

    Only the form is checked: a record is compared, and decides nothing else.
    """
    fingerprints = {
        name: Fingerprint(
            name, str(each["digest"]), {key: float(value) for key, value in each["values"].items()}
        )
        for name, each in dict(document["fingerprints"]).items()
    }
    return Record(dict(document["machine"]), fingerprints)


def describe_machine() -> Mapping[str, str]:
    """Return what decides how the numbers of a fingerprint are rounded."""
    return {
        "torch": torch.__version__.partition("+")[0],
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "architecture": platform.machine(),
    }


def take_fingerprint(name: str, data_root: Path) -> Fingerprint:
    """Train a few steps of a benchmark (or generate a few images), evaluate, and digest it all.

    Its few samples are prepared in ``data_root`` if they are not there yet.
    """
    config = configure_small(name, data_root)
    take = _train if config.definition.kind == "train" else _generate
    values, weights = take(config)
    content = {"values": values, "weights": weights}
    return Fingerprint(name, digest(content), values)


def configure_small(name: str, data_root: Path, settings: Sequence[str] = ()) -> RunConfig:
    """Return the configuration of a shrunk benchmark, and prepare its few samples in ``data_root``.

    ``settings`` may be those of the open division.
    """
    definition = shrink(definitions.load(name, "mini"))
    data.prepare(definition.data, data_root)
    given = {setting.partition("=")[0] for setting in settings}
    overrides = [each for each in PLAINLY if each.partition("=")[0] not in given]
    overrides += [f"global_batch_size={BATCH}"] if definition.kind == "train" else []
    division = "open" if settings else "closed"
    config = configure(
        definition,
        division=division,
        overrides=[*overrides, *settings],
        data_root=data_root,
        seed=SEED,
    )
    return config.name_system("fingerprint", "fingerprint", "0" * 64)


def shrink(definition: Definition) -> Definition:
    """Return a definition with a few dozen samples; all else is as it was."""
    few = MappingProxyType({**definition.data, **SAMPLES})
    generation = GENERATION if definition.kind == "generate" else None
    return dataclasses.replace(definition, data=few, generation=generation)


def _make_task(config: RunConfig) -> Any:
    alone = TorchRanks(0, 1, torch.device("cpu"))
    task = find_create(import_task(config.definition, "torch"))(config, alone)
    task.build()
    return task


def _train(config: RunConfig) -> tuple[dict[str, float], Mapping[str, Tensor]]:
    """Return the losses and metrics of each block, and the weights after the last one."""
    task = _make_task(config)
    task.warm_up()
    task.open_data()
    values: dict[str, float] = {}
    for number in range(1, len(BLOCK_SAMPLES) + 1):
        values |= train_block(task, number)
    return values, task.model.state_dict()


def train_block(task: Any, number: int) -> dict[str, float]:
    """Train to the end of a block and evaluate; return loss and metrics, by name and block."""
    block = Block(number, 0, BLOCK_SAMPLES[number - 1])
    values = {f"loss {number}": float(task.train(block, lambda _: None))}
    metrics = sorted(task.evaluate().items())
    return values | {f"{metric} {number}": float(value) for metric, value in metrics}


def _generate(config: RunConfig) -> tuple[dict[str, float], Mapping[str, Any]]:
    """Return the metrics of the generated images, and the images themselves."""
    task = _make_task(config)
    task.warm_up(GENERATION.warm_up_images)
    task.open_data()
    images = task.decode(task.sample(GENERATION.images, 0))
    values = {metric: float(value) for metric, value in sorted(task.evaluate(images).items())}
    return values, {"images": torch.as_tensor(images)}


def digest(value: Any) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of tensors, numbers, texts and containers.

    Equal content has an equal digest, whatever its order in memory.
    """
    hasher = hashlib.sha256()
    _feed(hasher, value)
    return hasher.hexdigest()[:16]


def _feed(hasher: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        hasher.update(f"{value.dtype}{tuple(value.shape)}".encode())
        # In the usual order, whatever the order in memory: a clone has no odd strides.
        flat = value.detach().cpu().reshape(-1).clone(memory_format=torch.contiguous_format)
        hasher.update(flat.view(torch.uint8).numpy().tobytes())
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            hasher.update(f"{key}:".encode())
            _feed(hasher, value[key])
    elif isinstance(value, list | tuple):
        for each in value:
            _feed(hasher, each)
    elif value is None or isinstance(value, str):
        hasher.update(repr(value).encode())
    else:
        hasher.update(float(value).hex().encode())


def find_difference(now: Fingerprint, before: Fingerprint, is_same_machine: bool) -> str:
    """Return how a fingerprint differs from an earlier one, or "" if it does not.

    On the same kind of machine the bits must be equal; on another one, losses and metrics must
    agree within rounding.
    """
    if now.digest == before.digest:
        return ""
    for name in sorted(now.values.keys() | before.values.keys()):
        new, old = now.values.get(name), before.values.get(name)
        if new is None or old is None:
            return f"{name} is new" if old is None else f"{name} is gone"
        if not math.isclose(new, old, rel_tol=ROUNDING, abs_tol=ROUNDING):
            return f"{name} was {old:.6g} and is {new:.6g}"
    if not is_same_machine:
        return ""
    return "other bits; losses and metrics agree within rounding"
