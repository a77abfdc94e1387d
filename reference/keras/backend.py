"""Load Keras 3 on TensorFlow or JAX, start runs on it, and choose their settings.

Import ``keras`` from here, so that it is always loaded in the same way. ``engine`` is what Keras
does not do alike on both backends: a module with the same functions for each.
"""

import gc
import importlib
import os
import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from cepheid.reference.keras.meeting import quiet_libraries
from cepheid.reference.machine.placement import (
    EXIT_CODE_OF_LOSS,
    decode_seat,
    find_address,
    find_placement,
    find_seat,
    leave_quietly,
    seat_rank,
)
from cepheid.reference.machine.ranks import RankEndedError, Ranks, SingleProcess
from cepheid.reference.run.autotune import (
    OTHER_WORK,
    Step,
    count_idle_threads,
    measure_idle_processors,
    pick_fastest,
)
from cepheid.reference.run.execution import Execution
from cepheid.rules.errors import UserError
from cepheid.rules.host import find_backend, usable_processors

BACKEND = find_backend()
os.environ["KERAS_BACKEND"] = BACKEND  # whatever the user's keras.json says
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors are raised, too
# TensorFlow itself uses oneDNN only on processors with AVX512-VNNI or better.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
with quiet_libraries():
    import keras

    engine: Any = importlib.import_module(f"cepheid.reference.keras.on_{BACKEND}")

__all__ = ["keras"]

WEIGHTS_SUFFIX = ".npz"
FRAMEWORK = f"keras {keras.__version__} on {engine.VERSION}"
POLICIES = {"fp32": "float32", "bf16": "mixed_bfloat16"}
"""The policies of layers that multiply, by the names of ``--set precision=…``."""
read = keras.ops.convert_to_numpy


def _choose_threads() -> tuple[int, str]:
    """Return a thread for each core that other work leaves idle, and the reason for fewer, or "".

    The user's OMP_NUM_THREADS, which TensorFlow and JAX ignore, is taken as it is.
    """
    requested = os.environ.get("OMP_NUM_THREADS", "")
    if requested.isdecimal() and int(requested) > 0:
        return int(requested), ""
    usable = max(1, usable_processors() // (find_placement().local_size or 1))
    idle = measure_idle_processors() if usable > 1 else 1.0
    count = count_idle_threads(usable, idle / usable)
    reason = f"{OTHER_WORK}: {idle:.1f} of {usable} processors are idle"
    return count, reason if count < usable else ""


THREADS, WHY_THREADS = _choose_threads()
engine.set_threads(THREADS)


@dataclass(frozen=True)
class KerasRanks(SingleProcess):
    """This process among several of a run."""

    def barrier(self) -> None:
        """Wait for all other processes."""
        self.all_gather_object(None)

    def broadcast(self, message: Any) -> Any:
        """Return the first rank's ``message``, a picklable value, on every rank."""
        return self.all_gather_object(message if self.is_first else None)[0]

    def all_gather_object(self, message: Any) -> list[Any]:
        """Return every rank's ``message``, a picklable value, by rank, on every rank."""
        return [*map(pickle.loads, engine.gather(pickle.dumps(message)))]

    def is_true_everywhere(self, flag: bool) -> bool:
        """Return whether ``flag`` is true on all ranks, on every rank."""
        return all(self.all_gather_object(flag))

    def split_batch(self, global_batch_size: int) -> int:
        """Return the samples per rank; raise UserError where devices cannot share a batch."""
        devices = max(self.world_size, engine.count_devices())
        if global_batch_size % devices:
            raise UserError(
                f"global_batch_size {global_batch_size} cannot be shared evenly by {devices} "
                f"devices of {self.world_size} ranks: choose a multiple of {devices}"
            )
        return global_batch_size // self.world_size


@contextmanager
def start_ranks() -> Iterator[SingleProcess]:
    """Start the processes that a launcher set up, or the only one.

    The first rank listens beside the port of the launcher, which that may use itself.
    """
    place = find_placement()
    if place.world_size == 1:
        yield SingleProcess(FRAMEWORK, next(iter(engine.name_devices()), None))
        return
    host, port = find_address(place, os.environ)
    engine.join(place, host, port + 1)
    seats = [decode_seat(each) for each in engine.gather(find_seat(place).encode())]
    seated = seat_rank(place, seats)
    accelerator = next(iter(engine.name_devices()), None)
    size, per_node, is_first = place.world_size, seated.local_size or 1, place.rank == 0
    try:
        yield KerasRanks(FRAMEWORK, accelerator, place.rank, size, per_node, is_first)
    except RankEndedError as error:
        if error.is_reported:
            leave_quietly(EXIT_CODE_OF_LOSS)
        raise
    engine.leave()


@contextmanager
def plan_ranks(count: int, per_node: int) -> Iterator[SingleProcess]:
    """Yield the first of ``count`` ranks, ``per_node`` on each machine, without starting any."""
    yield SingleProcess(FRAMEWORK, None, 0, count, per_node)


def read_peak_device_bytes(ranks: Ranks) -> int:
    """Return the most bytes that were allocated on the first accelerator of ``ranks`` at once."""
    return engine.read_peak_device_bytes()


def free_earlier_tasks() -> None:
    """Free the tasks of earlier runs and what was traced for them."""
    keras.backend.clear_session()
    gc.collect()


def set_seed(seed: int) -> None:
    """Let layers begin with the weights of this seed; called before layers are made."""
    engine.set_seed(seed)


def use_threads(requested: Execution) -> Execution:
    """Compute with the requested threads; return the settings with their number in place of auto.

    Raises UserError where the backend has already computed with another number in this process.
    """
    threads, now = requested.threads, str(engine.count_threads())
    if threads == "auto":
        return requested.with_setting("threads", now, WHY_THREADS)
    if threads != now:
        try:
            engine.set_threads(int(threads))
        except RuntimeError as error:
            raise UserError(
                f"threads={threads}: {BACKEND} computes with {now} in this process and cannot "
                "change; start another process"
            ) from error
    return requested


def name_way(execution: Execution) -> str:
    """Return how computations run with these settings, for readers of the log."""
    return engine.WAYS.get(execution.compile) or next(iter(engine.WAYS.values()))


def describe(ranks: Ranks, execution: Execution) -> dict[str, Any]:
    """Return framework, device and execution, for readers of the log."""
    devices = {"devices": count} if (count := engine.count_devices()) > 1 else {}
    return {
        "framework": FRAMEWORK,
        "device": ranks.accelerator or "cpu",
        "ranks": ranks.world_size,
        **devices,
        "threads_per_rank": int(execution.threads),
        "precision": {"bf16": "bfloat16"}.get(execution.precision, "float32"),
        "execution": asdict(execution),
    }


def autotune(requested: Execution, step: Step, ranks: Ranks) -> Execution:
    """Return ``requested`` with a value and a reason in place of every ``auto`` but threads.

    The number of threads cannot be changed. The precision is measured in each way in which the
    backend computes, such as TensorFlow's own graphs and XLA (``compile=on``), then the best of
    each against the other. On CPUs processor time counts, which other work does not affect.
    """
    clock = time.perf_counter if ranks.accelerator else time.process_time
    ways = tuple(engine.WAYS) if requested.compile == "auto" else (requested.compile,)
    best = {way: requested.with_setting("compile", way) for way in ways}
    if requested.precision == "auto":
        precisions = tuple(POLICIES)
        best = {
            way: pick_fastest(settings, "precision", precisions, step, ranks, clock)
            for way, settings in best.items()
        }
    if requested.compile != "auto":
        return best[requested.compile]

    def step_at_best(settings: Execution) -> str:
        return step(best[settings.compile])

    chosen = pick_fastest(requested, "compile", ways, step_at_best, ranks, clock)
    return best[chosen.compile].with_setting("compile", chosen.compile, chosen.because["compile"])
