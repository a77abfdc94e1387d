"""Take fingerprints: train a shrunk benchmark, also under settings that take other code paths.

A benchmark at mini scale is shrunk to 48 + 21 samples and trained for two blocks with batches of
8 samples, in eager fp32 on one thread, with an evaluation after each block; a benchmark that
generates draws and evaluates a few images. The plain fingerprint covers weights, losses, metrics.

The digest of a case also covers weights as they are after the warm-up, the optimizer's state, the
samples of each step and the state of torch's generator, on every rank. A second task then resumes
from the state after the first block, and the value ``resumes`` is 1 where it repeats the second
block bit for bit, else 0.
"""

import copy
import dataclasses
import hashlib
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from cepheid.measure.engine.own_process import run_on_ranks
from cepheid.measure.engine.turns import make_task
from cepheid.reference.data import generators
from cepheid.reference.machine.hardware import read_hardware
from cepheid.reference.run.config import RunConfig, configure
from cepheid.reference.torch.ranks.distributed import TorchRanks, start_ranks
from cepheid.rules import definition as definitions
from cepheid.rules.definition import Block, Definition, Generation

SAMPLES = {"train_samples": 48, "evaluation_samples": 21}  # 21: the last batch is not full
BATCH = 8
BLOCK_SAMPLES = (24, 56)  # the second block crosses the end of the first epoch
GENERATION = Generation(counts=(1, 12), repetitions=(1, 1), warm_up_images=4)
SEED = 3
PLAINLY = ("compile=off", "precision=fp32", "threads=1")
Fingerprint = tuple[str, dict[str, float]]  # the digest, and the losses and metrics that it covers
ALONE = TorchRanks(0, 1, torch.device("cpu"))
SHARED = ("weight_update=sharded", "weight_update=overlapped", "all_reduce=mesh")
"""Settings of the update that change nothing on one rank."""
NEED_RANKS = ("spatial_partitions=", "pipeline=", "tensor_ranks=")
SETTINGS: Mapping[str, Sequence[str]] = {
    # Each text is a case; several settings in one are joined with spaces.
    "chest_xray": ("micro_batch=2 model_bn_span=2", "precision=fp16", "weight_update=sharded"),
    "galaxy_bnn": ("micro_batch=2",),
    "galaxy_shape": ("micro_batch=2", "precision=bf16"),
    "galaxy_vae": ("micro_batch=2",),
    "gnmt": ("weight_update=sharded",),
    "kfac": ("micro_batch=2 model_bn_span=2", "weight_update=sharded"),
    "mask_rcnn": ("micro_batch=2", "precision=fp16", "weight_update=sharded"),
    "resnet50": (
        "micro_batch=2 model_bn_span=2",
        "model_bn_span=2",
        "opt_name=lars",
        "precision=fp16",
        "precision=fp16 weight_update=sharded",
        "spatial_partitions=2",
        "pipeline=2:1f1b:2 model_bn_span=2",
        *SHARED,
    ),
    "ssd": ("micro_batch=2 model_bn_span=2", "precision=fp16", "spatial_partitions=2", *SHARED),
    "transformer": ("precision=bf16", "tensor_ranks=2", "pipeline=2", *SHARED),
}


@dataclass(frozen=True)
class Case:
    """A benchmark with settings on a number of ranks; its text is the name of its fingerprint."""

    benchmark: str
    ranks: int
    settings: tuple[str, ...] = ()

    def __str__(self) -> str:
        ranks = "1 rank" if self.ranks == 1 else f"{self.ranks} ranks"
        return ", ".join((self.benchmark, ranks, *self.settings))


def list_cases(benchmark: str) -> list[Case]:
    """Return the cases of a benchmark on one rank, then those on two; none if it generates."""
    if definitions.load(benchmark, "mini").kind != "train":
        return []
    return [
        Case(benchmark, ranks, tuple(text.split()))
        for ranks in (1, 2)
        for text in ("", *SETTINGS.get(benchmark, ()))
        if ranks > 1 or not any(key in text for key in (*NEED_RANKS, *SHARED))
    ]


def describe_machine() -> Mapping[str, str]:
    """Return what decides how the numbers of a fingerprint are rounded."""
    return {
        "torch": torch.__version__.partition("+")[0],
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "architecture": platform.machine(),
        # Libraries choose kernels by the maker of a processor, too; families had the same bits.
        "processor": read_hardware(Path())["processor"].partition(" (family")[0],
    }


def take_fingerprints(
    benchmark: str, cases: Sequence[Case], data_root: Path
) -> Iterator[tuple[str, Fingerprint]]:
    """Take the plain fingerprint of a benchmark, then those of cases; yield each with its name.

    Its few samples are prepared in ``data_root`` if they are not there yet. Cases on two ranks are
    trained on gloo ranks.
    """
    yield benchmark, take_fingerprint(benchmark, data_root)
    for case in cases:
        if case.ranks == 1:
            yield str(case), take_case(case, data_root, ALONE)
    if on_two := [case for case in cases if case.ranks == 2]:
        taken = run_on_ranks(2, _take_on_rank, on_two, data_root)
        yield from zip(map(str, on_two), taken, strict=True)


def take_fingerprint(name: str, data_root: Path) -> Fingerprint:
    """Train a few steps of a benchmark (or generate a few images), evaluate, and digest it all."""
    config = configure_small(name, data_root)
    task = make_task(config, ALONE)
    values: dict[str, float] = {}
    if config.definition.kind == "train":
        for number in range(1, len(BLOCK_SAMPLES) + 1):
            values |= train_block(task, number)
        weights = task.model.state_dict()
    else:
        images = task.decode(task.sample(GENERATION.images, 0))
        metrics = sorted(task.evaluate(images).items())
        values = {metric: float(value) for metric, value in metrics}
        weights = {"images": torch.as_tensor(images)}
    return digest({"values": values, "weights": weights}), values


def configure_small(name: str, data_root: Path, settings: Sequence[str] = ()) -> RunConfig:
    """Return the configuration of a shrunk benchmark, and prepare its few samples in ``data_root``.

    ``settings`` may be those of the open division.
    """
    definition = shrink(definitions.load(name, "mini"))
    generators.prepare(definition.data, data_root)
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


def train_block(task: Any, number: int) -> dict[str, float]:
    """Train to the end of a block and evaluate; return loss and metrics, by name and block."""
    block = Block(number, 0, BLOCK_SAMPLES[number - 1])
    values = {f"loss {number}": float(task.train(block, lambda _: None))}
    metrics = sorted(task.evaluate().items())
    return values | {f"{metric} {number}": float(value) for metric, value in metrics}


def _take_on_rank(cases: Sequence[Case], data_root: Path) -> list[Fingerprint]:
    torch.set_num_threads(1)
    with start_ranks() as ranks:
        return [take_case(case, data_root, ranks) for case in cases]


def take_case(case: Case, data_root: Path, ranks: TorchRanks) -> Fingerprint:
    """Return the fingerprint of a case, the same on all ranks, with the first rank's values."""
    config = configure_small(case.benchmark, data_root, case.settings)
    task = make_task(config, ranks)
    content: dict[str, Any] = {"warmed up": digest(task.model.state_dict())}
    values, middle = train_block(task, 1), copy.deepcopy(task.state())
    content["first block"] = _digest_state(task)
    values |= train_block(task, len(BLOCK_SAMPLES))
    content["last block"] = _digest_state(task)
    again = make_task(config, ranks)
    again.restore(middle)
    resumed = train_block(again, len(BLOCK_SAMPLES))
    is_equal = resumed.items() <= values.items() and digest(again.model.state_dict()) == digest(
        task.model.state_dict()
    )
    values["resumes"] = float(ranks.is_true_everywhere(is_equal))
    of_ranks = ranks.all_gather_object({**content, "values": values})
    return digest(of_ranks), of_ranks[0]["values"]


def _digest_state(task: Any) -> str:
    """Return a digest of weights, optimizer, samples and torch's global generator."""
    state = {key: value for key, value in task.state().items() if value != {}}
    return digest({**state, "generator": torch.get_rng_state()})


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
