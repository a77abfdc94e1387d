"""Compute with execution settings: threads, precision, compiled functions; try those left open.

The choice is stored with the result, so that all its runs compute alike (rule T18); see
``results.ResultFolder.execution``. The mathematics is the same whatever is chosen; parameters and
losses stay in float32.
"""

import os
import platform
import random
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import torch

from cepheid.reference.machine.ranks import Ranks
from cepheid.reference.run.autotune import (
    OTHER_WORK,
    Step,
    count_idle_threads,
    measure_idle_processors,
    pick_fastest,
)
from cepheid.reference.run.execution import GRAPHS, TF32, Execution
from cepheid.reference.torch.device import Device
from cepheid.reference.torch.devices.kinds import find_device
from cepheid.rules.errors import UserError
from cepheid.rules.host import usable_processors


class DeviceRanks(Ranks, Protocol):
    """Ranks each of which drives a device of torch (``TorchRanks``)."""

    @property
    def device(self) -> torch.device:
        """The device that this rank drives."""


def seed_everything(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch, from which weights are initialised."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def use_settings(execution: Execution, device: Device) -> torch.dtype:
    """Compute with threads, precision and kernels of ``execution`` from now on; return its type.

    An ``auto`` that autotuning has not replaced yet computes in float32.
    """
    if execution.threads != "auto":
        torch.set_num_threads(int(execution.threads))
    device.use_precision(execution.precision)
    device.use_convolutions(execution.convolutions)
    return PRECISIONS.get(execution.precision, torch.float32)


def autotune(requested: Execution, step: Step, ranks: DeviceRanks) -> Execution:
    """Return ``requested`` with a value and a reason in place of every ``auto``.

    Threads and precision are compared in eager execution, because compiling takes much longer than
    these measurements, and the precision that is faster in eager execution is also faster when
    compiled. So are kernels of convolutions, where the device has a choice. Then the compiled step
    is compared with the eager one, and with one that the device repeats as a graph, where it can.
    The likely best candidate comes first and is kept unless another is clearly faster, so that
    noise does not decide. The first rank decides for all ranks.
    """
    chosen = requested.with_setting("compile", "off")
    if requested.threads == "auto":
        chosen = _pick_threads(chosen, step, ranks)
    if requested.precision == "auto":
        chosen = _pick_precision(chosen, step, ranks)
    ways = find_device(ranks.device).list_convolutions()
    if len(ways) > 1 and "convolutions" not in requested.because:  # of an earlier run
        chosen = pick_fastest(chosen, "convolutions", ways, step, ranks)
    if requested.compile != "auto":
        return chosen.with_setting("compile", requested.compile)
    failures = {way: step(chosen.with_setting("compile", way)) for way in ("on", GRAPHS)}
    failure = failures["on"]
    if ways := [way for way in failures if ranks.is_true_everywhere(not failures[way])]:
        return pick_fastest(chosen, "compile", (*ways, "off"), step, ranks)
    return ranks.broadcast(
        chosen.with_setting(
            "compile", "off", f"torch.compile fails: {failure or 'on another rank'}"
        )
    )


def list_thread_counts(device: torch.device) -> Sequence[str]:
    """Return the numbers of threads that may be fastest, the likely best first.

    They are torch's own choice and half of it, because a core may run two threads. If the user has
    set OMP_NUM_THREADS, torch's own choice obeys it and is the only candidate.
    """
    usual = torch.get_num_threads()
    if device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ and usual >= 4:
        return str(usual), str(usual // 2)
    return (str(usual),)


def _pick_threads(execution: Execution, step: Step, ranks: DeviceRanks) -> Execution:
    """Pick the fastest number of threads, but no more than other work leaves cores for.

    The threads of a step wait for each other many times, so if one of them waits for a core, all
    do. Beside other work a compiled step on all cores may take ten times as long as on the idle
    ones. The best times of eager steps, which are compared here, do not show it.
    """
    # Those of the first rank: others may be bound to fewer processors, or have another environment.
    is_given = ranks.device.type != "cpu" or "OMP_NUM_THREADS" in os.environ
    candidates, is_given = ranks.broadcast((list_thread_counts(ranks.device), is_given))
    usual = int(candidates[0])
    if is_given or usual == 1:
        return pick_fastest(execution, "threads", candidates, step, ranks)
    sharers = count_sharers(ranks)  # the other ranks wait from here on, and compute nothing
    idle = ranks.broadcast(measure_idle_processors() if ranks.is_first else 0.0)
    usable = ranks.broadcast(usable_processors())
    count = count_idle_threads(usual, idle / usable, sharers)
    if count >= usual:
        return pick_fastest(execution, "threads", candidates, step, ranks)
    reason = f"{OTHER_WORK}: {idle:.1f} of {usable} processors are idle"
    if sharers > 1:
        reason = f"{sharers} ranks share {usable} processors, of which {idle:.1f} are idle"
    return execution.with_setting("threads", str(count), reason)


def count_sharers(ranks: DeviceRanks, rank: int = 0) -> int:
    """Count the ranks that may use the processors of ``rank``, which is one of them."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {0}
    places = ranks.all_gather_object((platform.node(), allowed))
    node, own = places[rank]
    return sum(name == node and bool(own & other) for name, other in places)


def count_workers(ranks: DeviceRanks) -> int:
    """Return the threads that decode images for this rank; all ranks must call this.

    A CPU needs far longer to train on an image than one thread needs to decode it. Ranks that a
    launcher has bound to processors of their own have all of these.
    """
    if not find_device(ranks.device).is_accelerator:
        return 1
    return max(1, usable_processors() // count_sharers(ranks, ranks.rank))


def _pick_precision(execution: Execution, step: Step, ranks: DeviceRanks) -> Execution:
    """Pick the fastest precision; on CPUs by the processor time of one thread.

    Other work on the machine does not affect the processor time of a thread.
    """
    candidates = find_device(ranks.device).list_precisions()
    if ranks.device.type != "cpu":
        return pick_fastest(execution, "precision", candidates, step, ranks)
    one_thread = execution.with_setting("threads", "1")
    tuned = pick_fastest(one_thread, "precision", candidates, step, ranks, time.thread_time)
    return tuned.with_setting("threads", execution.threads)


@contextmanager
def explain_out_of_memory(
    device: Device, what: str, fix: str = "choose a smaller global_batch_size, or more ranks"
) -> Iterator[None]:
    """Raise UserError with the ``fix`` where ``what`` needs more memory than there is."""
    try:
        yield
    except RuntimeError as error:
        if not device.is_out_of_memory(error):
            raise
        has_own = device.is_accelerator and "DefaultCPUAllocator" not in str(error)
        raise UserError(
            f"{what} needs more memory than {device.name if has_own else 'this machine'} has: {fix}"
        ) from error


PRECISIONS: Mapping[str, torch.dtype] = MappingProxyType(
    {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
)
"""The types by the names of ``--set precision=…``; fp16 needs a task that scales its loss."""


def find_device_for(execution: Execution, ranks: DeviceRanks) -> Device:
    """Return the device of this rank. Raises UserError where it does not know the precision.

    Nobody knows the device of ranks that are only planned.
    """
    device = find_device(ranks.device)
    is_known = execution.precision != TF32 or TF32 in device.list_precisions()
    if not is_known and not getattr(ranks, "is_planned", False):
        raise UserError(
            f"--set precision=tf32: {device.name} does not multiply in TF32; "
            "fix: choose precision=fp32, or auto"
        )
    return device


def name_precision(execution: Execution) -> str:
    """Return the precision as logs have it, also before autotuning has replaced ``auto``."""
    if execution.precision == TF32:
        return TF32
    return str(PRECISIONS.get(execution.precision, torch.float32)).removeprefix("torch.")


def describe(trainer: Any) -> Mapping[str, Any]:
    """Return framework, device, ranks and execution of a trainer, for readers of the log."""
    ranks, step = trainer.ranks, trainer.captured.note or trainer.compiled_loss.note
    return {
        "framework": ranks.framework,
        "device": ranks.accelerator or "cpu",
        "ranks": ranks.world_size,
        "threads_per_rank": torch.get_num_threads(),
        "precision": name_precision(trainer.execution),
        **trainer.device.describe_products(),
        "training_step": trainer.preconditioner.note or step,
        "evaluation": trainer.compiled_predict.note,
        "execution": asdict(trainer.execution),
        **trainer.workload.describe(trainer.shape),
    }


class Compiled:
    """A function that runs compiled while ``enabled``, and eagerly otherwise.

    It is compiled at its first call. Where that fails (no C++ compiler, no ``Python.h``), it runs
    eagerly from then on and ``failure`` holds the reason. With ``insist`` it raises UserError
    instead. ``dynamic`` is for arguments whose shapes vary, which would otherwise cause a
    compilation for each shape.
    """

    def __init__(
        self, function: Callable[..., Any], *, enabled: bool, insist: bool, dynamic: bool = False
    ) -> None:
        self._eager, self._dynamic = function, dynamic
        self._compiled: Callable[..., Any] | None = (
            None  # at the first call: loading the compiler takes seconds
        )
        self.enabled, self.insist = enabled, insist
        self.failure = ""

    @property
    def note(self) -> str:
        """``compiled`` or ``eager``."""
        return "compiled" if self.enabled else "eager"

    def __call__(self, *arguments: Any) -> Any:
        """Call the function, compiled if possible."""
        if not self.enabled:
            return self._eager(*arguments)
        if self._compiled is None:
            return self._first_call(*arguments)
        return self._compiled(*arguments)

    def _first_call(self, *arguments: Any) -> Any:
        # The compiler warns about itself, also later, when it compiles the first backward pass.
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\._inductor")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compiled = torch.compile(self._eager, dynamic=self._dynamic)
                result = compiled(*arguments)
            self._compiled = compiled
            return result
        except Exception as error:  # the compiler's tool chain raises many types
            result = self._eager(*arguments)  # an error here is a bug in the function itself
            self.failure = str(error).strip().splitlines()[0][:200]
            if self.insist:
                raise UserError(
                    f"compile=on, but torch.compile fails here: {self.failure} "
                    "(a C++ compiler and Python.h are needed; compile=off runs without)"
                ) from error
            self.enabled = False
            return result
