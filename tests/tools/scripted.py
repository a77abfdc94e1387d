"""`cepheid run` with a task that learns nothing, and with a mishap on request.

Started as a program of its own: ``MISHAP="train 1 kill" python -m tests.tools.scripted …`` kills
rank 1 in its second block. Command line, loop, ranks, log and folder are the real ones. The
definition is one with blocks of 32 samples (``TIMING``), which ``$CEPHEID_BENCHMARKS`` names.
"""

import mmap
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from cepheid.reference.data.verification import DataRead
from cepheid.rules.definition import Block
from cepheid.rules.errors import UserError
from cepheid.tools import run_benchmark
from cepheid.tools.console.program import run_tool
from cepheid.tools.run import live_check

BLOCKS = 3
BEGUN = "scripted: a process begins"
TIMING = {"eval_every_samples": 32, "max_samples": 320}


def mishap(moment: str, rank: int) -> float:
    """What the environment asks for, if it does so for this moment and rank."""
    asked, of_rank, what = os.environ.get("MISHAP", "nowhere 0 nothing").split()
    if (moment, rank) == (asked, int(of_rank)):
        Path(os.environ["HAPPENED"]).touch()
        match what:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "raise":
                raise MemoryError("no memory left on this rank")
            case "refuse":
                raise UserError("bad data on this rank: delete them")
            case "nan":
                return float("nan")
            case "bus":
                map_and_cut(Path(os.environ["HAPPENED"]))
            case "hang":
                time.sleep(1000)
            case "clock":  # set back by an hour, as mllog reads it
                now = time.time
                time.time = lambda: now() - 3600
            case "wait":  # until the test has looked
                while not Path(f"{os.environ['HAPPENED']}.seen").exists():
                    time.sleep(0.02)
    return 0.0


def map_and_cut(path: Path) -> None:
    """Read a mapped file that was cut short: the system sends SIGBUS."""
    path.write_bytes(bytes(2**16))
    with path.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
        file.truncate(0)
        mapped.read()


class ScriptedTask:
    """Reaches its targets in the third block; all ranks meet in every step."""

    data_digest = "d" * 64

    def __init__(self, config: Any, ranks: Any) -> None:
        self.config, self.ranks = config, ranks
        self.samples, self.block = 0, 0
        self.noise = config.seed % 1000 / 1e6  # two runs are no copies of each other
        mishap("create", ranks.rank)

    def drop_caches(self) -> None:
        """Nothing to drop."""

    def build(self) -> int:
        mishap("build", self.ranks.rank)
        return 457_809

    def warm_up(self) -> None:
        self.meet()

    def implementation(self) -> Mapping[str, Any]:
        ranks = self.ranks.world_size
        return {"framework": "torch", "device": "cpu", "precision": "float32", "ranks": ranks}

    def open_data(self) -> None:
        """Nothing to open."""

    def train(self, block: Block, on_samples: Callable[[int], None]) -> float:
        loss = 1.0 + self.noise
        self.block = block.number
        time.sleep(0.01)  # blocks of less are as uneven as those of a forged log (T4.too_fast)
        while self.samples < block.samples:
            if block.number == 2:
                loss += mishap("train", self.ranks.rank)
            self.meet()
            self.samples += self.config.global_batch_size
            on_samples(self.samples)
        return self.meet(loss)

    def evaluate(self) -> dict[str, float]:
        error = self.noise + (0.0 if self.block == BLOCKS else 1.0)
        if self.block == 2:
            error += mishap("evaluate", self.ranks.rank)
        error = self.meet(error)
        return {"e_rmse": error, "nll": 9 * error - 5, "coverage_68": 0.7, "coverage_95": 0.9}

    def meet(self, value: float = 1.0) -> float:
        import torch

        total: float = self.ranks.sum(torch.tensor([value])).item()
        return total / int(self.ranks.world_size)

    def digest_data(self) -> DataRead:
        mishap("digest", self.ranks.rank)
        return DataRead(self.data_digest)

    def synchronize(self) -> None:
        self.ranks.barrier()

    def state(self) -> Mapping[str, Any]:
        mishap("state", self.ranks.rank)
        return {"samples": self.samples, **({"end": Written()} if self.ranks.is_first else {})}


class Written:
    """A part of the weights, which notices that it is being written."""

    def __reduce__(self) -> tuple[type[str], tuple[()]]:
        mishap("write", 0)
        return str, ()


def create(config: Any, ranks: Any) -> ScriptedTask:
    return ScriptedTask(config, ranks)


def prepare(data: object, root: object, on_progress: object) -> None:
    """In place of ``cepheid.reference.data.generators.prepare``."""
    mishap("prepare", 0)


def main() -> None:
    from cepheid.benchmarks import registry
    from cepheid.reference.data import generators
    from cepheid.reference.machine import ranks
    from cepheid.reference.torch import backend

    backend.free_earlier_tasks = lambda: None  # it takes longer than all the rest
    ranks.SILENT_SECONDS = float(os.environ.get("SILENT_SECONDS", ranks.SILENT_SECONDS))
    generators.prepare = prepare  # type: ignore[assignment]
    live_check.SHARE_OF_TIME = 1e9  # blocks take no time here
    registry.find_task_module = lambda definition, framework: "tests.tools.scripted"
    if os.environ.get(run_benchmark.EARLIER_RUNS):
        os.environ.pop("MISHAP", None)  # it is for the first run of a command
    with suppress(OSError):
        print(BEGUN, flush=True)
    sys.argv[1:1] = ["galaxy_shape", "--scale", "mini"]
    run_tool(run_benchmark.main)


if __name__ == "__main__":
    main()
