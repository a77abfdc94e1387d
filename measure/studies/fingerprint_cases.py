"""More fingerprints of a benchmark: the settings and numbers of ranks that take other code paths.

A case trains the shrunk benchmark as its plain fingerprint does. Its digest also covers weights as
initialised and as they are after the warm-up, the optimizer's state, the samples of each step and
the state of torch's generator, on every rank. A second task then resumes from the state after the
first block, and the value ``resumes`` is 1 where it repeats the second block bit for bit, else 0.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cepheid.benchmarks.registry import import_task
from cepheid.measure.engine.own_process import run_on_ranks
from cepheid.measure.studies.fingerprint import (
    BLOCK_SAMPLES,
    Fingerprint,
    configure_small,
    digest,
    train_block,
)
from cepheid.reference.run.config import RunConfig
from cepheid.reference.session.frameworks import find_create
from cepheid.reference.torch.ranks.distributed import TorchRanks, start_ranks
from cepheid.rules import definition as definitions

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
    """A benchmark with settings on a number of ranks."""

    benchmark: str
    ranks: int
    settings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of its fingerprint."""
        ranks = "1 rank" if self.ranks == 1 else f"{self.ranks} ranks"
        return ", ".join((self.benchmark, ranks, *self.settings))


def list_cases(benchmark: str) -> list[Case]:
    """Return the cases of a benchmark on one rank, then those on two; none if it generates."""
    if definitions.load(benchmark, "mini").kind != "train":
        return []
    cases = []
    for ranks in (1, 2):
        for text in ("", *SETTINGS.get(benchmark, ())):
            needs_ranks = any(key in text for key in (*NEED_RANKS, *SHARED))
            if ranks > 1 or not needs_ranks:
                cases.append(Case(benchmark, ranks, tuple(text.split())))
    return cases


def take_cases(benchmark: str, data_root: Path) -> list[Fingerprint]:
    """Return the fingerprints of all cases of a benchmark; those on two ranks on gloo ranks.

    Its few samples are prepared in ``data_root`` if they are not there yet.
    """
    alone, on_two = (
        [case for case in list_cases(benchmark) if case.ranks == count] for count in (1, 2)
    )
    taken = [_take_case(case, data_root, ALONE) for case in alone]
    return taken + run_on_ranks(2, _take_on_rank, on_two, data_root) if on_two else taken


def _take_on_rank(cases: Sequence[Case], data_root: Path) -> list[Fingerprint]:
    torch.set_num_threads(1)
    with start_ranks() as ranks:
        return [_take_case(case, data_root, ranks) for case in cases]


def _take_case(case: Case, data_root: Path, ranks: TorchRanks) -> Fingerprint:
    """Return the fingerprint of a case, the same on all ranks, with the first rank's values."""
    config = configure_small(case.benchmark, data_root, case.settings)
    task = _start_task(config, ranks)
    content: dict[str, Any] = {"warmed up": digest(task.model.state_dict())}
    values, middle = train_block(task, 1), copy.deepcopy(task.state())
    content["first block"] = _digest_state(task)
    values |= train_block(task, len(BLOCK_SAMPLES))
    content["last block"] = _digest_state(task)
    again = _start_task(config, ranks)
    again.restore(middle)
    resumed = train_block(again, len(BLOCK_SAMPLES))
    is_equal = resumed.items() <= values.items() and digest(again.model.state_dict()) == digest(
        task.model.state_dict()
    )
    values["resumes"] = float(ranks.is_true_everywhere(is_equal))
    of_ranks = ranks.all_gather_object({**content, "values": values})
    return Fingerprint(case.name, digest(of_ranks), of_ranks[0]["values"])


def _start_task(config: RunConfig, ranks: TorchRanks) -> Any:
    """Return a task that is built and warmed up and has its data."""
    task = find_create(import_task(config.definition, "torch"))(config, ranks)
    task.build()
    task.warm_up()
    task.open_data()
    return task


def _digest_state(task: Any) -> str:
    """Return a digest of weights, optimizer, samples and torch's global generator."""
    state = {key: value for key, value in task.state().items() if value != {}}
    return digest({**state, "generator": torch.get_rng_state()})
