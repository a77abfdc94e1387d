"""An update with K-FAC over one without, beside its peer kfac-pytorch (gpauloski), all in turns in
one process of the mini scale::

    pip install --no-deps git+https://github.com/gpauloski/kfac-pytorch
    python -m benchmarks.kfac.speed --data data
"""

import argparse
import statistics
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.kfac.task import PreconditionedResNet50, create
from reference import data
from reference.measure.speed import step_seconds
from reference.run.config import RunConfig, configure
from reference.torch.distributed import TorchRanks
from rules import definition
from rules.definition import Definition
from rules.errors import UserError

UPDATES = 10  # of each turn
RUN_UPDATES = 8  # of each turn of a whole run
ALONE = TorchRanks(0, 1, torch.device("cpu"))
SIDES = {
    "SGD": ["opt_preconditioner=none"],
    "K-FAC, every step": ["kfac_stale=false"],
    "K-FAC, stale": [],
    "kfac-pytorch, every step": ["opt_preconditioner=none"],
}


class Peer(PreconditionedResNet50):
    """SGD on gradients that kfac-pytorch preconditions, with explicit inverses, which are the
    faster of its two ways here; factors and inverses at every step."""

    def build(self) -> int:
        """As ever; the peer wants weights in the usual memory layout and a process group."""
        from kfac.preconditioner import KFACPreconditioner

        count = super().build()
        if not dist.is_initialized():
            store = dist.HashStore()  # type: ignore[attr-defined]  # no address is needed
            dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        self.model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        self.peer: Any = KFACPreconditioner(
            self.model,
            factor_update_steps=1,
            inv_update_steps=1,
            damping=self.options.damping,
            lr=self.schedule.peak,
            compute_method="inverse",
        )
        return count

    def apply_gradients(self) -> None:
        """Precondition, then as SGD."""
        for parameter in self.model.parameters():
            assert parameter.grad is not None
            parameter.grad = parameter.grad.contiguous()
        self.peer.step()
        super().apply_gradients()


def configured(
    chosen: Definition, name: str, precision: str, data_root: Path, seed: int
) -> RunConfig:
    """The configuration of one of the ``SIDES``."""
    settings = [f"precision={precision}", *SIDES[name]]
    return configure(chosen, division="open", overrides=settings, data_root=data_root, seed=seed)


def ready(config: RunConfig, name: str, settle: int) -> PreconditionedResNet50:
    """A task after ``settle`` updates."""
    task = (Peer if name.startswith("kfac-pytorch") else create)(config, ALONE)
    task.build()
    task.open_data()
    task.model.train()
    for _ in range(settle if name.endswith("stale") else 1):
        task.step()
    return task


def whole_run(
    chosen: Definition, precision: str, data_root: Path, seed: int
) -> tuple[float, float]:
    """Mean seconds of an update of SGD and of one of K-FAC over as many updates as the learning
    rate takes to fall to 0, from the first on, in turns."""
    tasks: list[PreconditionedResNet50] = []
    for name in ("SGD", "K-FAC, stale"):
        config = configured(chosen, name, precision, data_root, seed)
        task = create(config, ALONE)
        task.build()
        task.warm_up()
        task.open_data()
        tasks.append(task)
    last_sample = (
        float(config.hyperparameters["opt_learning_rate_decay_epochs"]) * chosen.train_samples
    )
    seconds, updates = [0.0, 0.0], 0
    while tasks[0].samples < last_sample:
        for side, task in enumerate(tasks):
            seconds[side] += RUN_UPDATES * step_seconds(task, RUN_UPDATES)
        updates += RUN_UPDATES
    return seconds[0] / updates, seconds[1] / updates


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    add = parser.add_argument
    add("--rounds", type=int, default=5, metavar="N", help="turns of each side (default: 5)")
    add("--settle", type=int, default=125, metavar="N", help="updates before stale ones are timed")
    add("--precision", default="fp32", choices=["fp32", "bf16"])
    add(
        "--whole-run",
        action="store_true",
        help="instead: all updates of a run of K-FAC and as many of SGD, N times with seeds 1 to N",
    )
    add("--data", type=Path, default=Path("data"))
    arguments = parser.parse_args(argv)
    chosen = definition.load("kfac", "mini")
    data.prepare(chosen.data, arguments.data)
    if arguments.whole_run:
        ratios = []
        for seed in range(1, arguments.rounds + 1):
            plain, ours = whole_run(chosen, arguments.precision, arguments.data, seed)
            ratios.append(ours / plain)
            print(f"seed {seed}: {1000 * plain:.1f} and {1000 * ours:.1f} ms, {ratios[-1]:.2f}")
        print(f"K-FAC, stale, of SGD: median {statistics.median(ratios):.2f}")
        return
    has_peer = find_spec("kfac") is not None
    if not has_peer:
        print("kfac-pytorch is not installed: its side is left out")
    tasks = {}
    for name in SIDES:
        if name.startswith("kfac-pytorch") and not has_peer:
            continue
        config = configured(chosen, name, arguments.precision, arguments.data, seed=1)
        tasks[name] = ready(config, name, arguments.settle)
    taken: dict[str, list[float]] = {name: [] for name in tasks}
    for turn in range(arguments.rounds + 1):
        for name in list(tasks)[:: -1 if turn % 2 else 1]:
            seconds = step_seconds(tasks[name], UPDATES)
            if turn:  # the first does not count
                taken[name].append(seconds)
    print(f"{torch.get_num_threads()} thread(s), {arguments.precision}, mean of each turn")
    for name, values in taken.items():
        ratios = [ours / plain for ours, plain in zip(values, taken["SGD"], strict=True)]
        print(
            f"{name}: {1000 * statistics.mean(values):.1f} ms; of SGD {statistics.mean(ratios):.2f}"
            f" ({min(ratios):.2f} to {max(ratios):.2f})"
        )


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"problem: {error}") from error
