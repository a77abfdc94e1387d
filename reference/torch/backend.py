"""Start runs on torch, free them afterwards, and measure what a device can do at best.

A run takes from here what it needs of the framework that the user has chosen, as from
``reference/keras/backend.py`` for Keras.
"""

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from torch import Tensor

from cepheid.reference.torch.device import Device
from cepheid.reference.torch.devices.kinds import find_device
from cepheid.reference.torch.execution import PRECISIONS, DeviceRanks
from cepheid.reference.torch.ranks.distributed import plan_ranks, start_ranks

__all__ = [
    "WEIGHTS_SUFFIX",
    "free_earlier_tasks",
    "plan_ranks",
    "read_peak_device_bytes",
    "start_ranks",
]

WEIGHTS_SUFFIX = ".pt"


def free_earlier_tasks() -> None:
    """Free the tasks of earlier runs and what was compiled for them.

    A task and its compiled functions refer to each other, so that only the garbage collector frees
    them. Until then they keep memory and mapped pages of the dataset, which ``cache_clear`` then
    cannot drop. The compiler also stops compiling after a few functions of the same name.
    """
    gc.collect()
    torch.compiler.reset()


def read_peak_device_bytes(ranks: DeviceRanks) -> int:
    """Return the most bytes that were allocated on this rank's accelerator at once."""
    return find_device(ranks.device).peak_bytes()


Clock = Callable[[], float]
SECONDS, LONGEST_SECONDS = 0.3, 2.0  # for each kernel: by its own clock, and by that of the wall
REPETITIONS_MIN = 3
DIGITS = 4


def measure_peaks(device: Device) -> dict[str, Any]:
    """Return ``peak_tflops`` and ``memory_gb_per_second``, as a system description has them.

    That of a processor is the peak of a core times the cores. Precisions that the device emulates
    are left out.
    """
    tflops = {}
    for name in (*device.list_precisions(), *(["fp16"] if device.is_accelerator else [])):
        device.use_precision(name)
        tflops[name] = measure_products(device, PRECISIONS[name])
    copied = measure_copy(device)
    return {
        "peak_tflops": {name: {"measured": _round(value)} for name, value in tflops.items()},
        "memory_gb_per_second": {"measured": _round(copied)},
    }


def measure_products(device: Device, dtype: torch.dtype) -> float:
    """Return TFLOP/s of products of two square matrices.

    A processor computes on one thread, timed by its own processor time: all cores together would
    wait for the one that has other work to do.
    """
    side, place = device.matrix_side, device.place
    left, right = (torch.randn(side, side, device=place).to(dtype) for _ in range(2))
    out = torch.empty(side, side, device=place, dtype=dtype)
    if device.is_accelerator:
        seconds, units = _time_best(device, lambda: torch.mm(left, right, out=out)), 1
    else:
        with _use_threads(1):
            seconds = _time_best(device, lambda: torch.mm(left, right, out=out), time.thread_time)
        units = _count_cores()
    return units * 2 * side**3 / seconds / 1e12


def measure_copy(device: Device) -> float:
    """Return GB/s of a copy within the memory; each byte is read and written."""
    source = torch.ones(device.copied_bytes // 4, device=device.place)
    target = torch.empty_like(source)
    seconds = _time_best(device, lambda: target.copy_(source))
    if (
        not device.is_accelerator
    ):  # one core may be faster than all, of which some have other work to do
        for threads, clock in ((_count_cores(), time.perf_counter), (1, time.thread_time)):
            with _use_threads(threads):
                seconds = min(seconds, _time_best(device, lambda: target.copy_(source), clock))
    return 2 * source.numel() * source.element_size() / seconds / 1e9


def _time_best(
    device: Device, kernel: Callable[[], Tensor], clock: Clock = time.perf_counter
) -> float:
    kernel()
    best, total, repetitions, began = float("inf"), 0.0, 0, time.perf_counter()
    while repetitions < REPETITIONS_MIN or total < SECONDS:
        device.synchronize()
        started = clock()
        kernel()
        device.synchronize()
        seconds = clock() - started
        best, total, repetitions = min(best, seconds), total + seconds, repetitions + 1
        if time.perf_counter() - began > LONGEST_SECONDS:
            break
    return best


def _count_cores() -> int:
    """Count the cores that this process may use; two threads of a core share its units."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    return min(cores, allowed or cores)


@contextmanager
def _use_threads(count: int) -> Iterator[None]:
    """Compute with this many threads: a launcher may have allowed one only."""
    threads = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _round(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
