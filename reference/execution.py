"""How the arithmetic is done where the user left it open: measured on this machine.

What is chosen is kept with the result, so that all its runs compute alike (rule T18), see
``results.ResultFolder.settled``. The mathematics is the same whatever is chosen.
"""

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from reference import precision
from reference.config import Execution
from reference.distributed import Ranks

ROUNDS, FEWEST_ROUNDS, ENOUGH_SECONDS = 5, 3, 2.0
# A candidate must be that much faster than the first one: less is noise.
MARGIN = 0.05

Step = Callable[[Execution], str]
"""One training step on synthetic data, forwards and backwards, the way it is told. Returns why it
could not be compiled, empty if it could or was not to be."""


def use_threads(execution: Execution) -> None:
    """Compute with as many threads as ``execution`` says, from now on."""
    if execution.threads != "auto":
        torch.set_num_threads(int(execution.threads))


def settled(asked: Execution, step: Step, ranks: Ranks) -> Execution:
    """``asked`` with a value, and the reason for it, in place of every ``auto``.

    Threads and precision are compared in eager execution: compiling takes much longer than all
    that is measured here, and the precision that convolves faster does so in both. Last the
    compiled step is compared with the eager one. Of each, the likely best comes first and is kept
    unless another is clearly faster, so that noise does not choose. The first rank's choice counts
    for all.
    """
    chosen = asked.having("compile", "off")
    if asked.threads == "auto":
        chosen = _fastest(chosen, "threads", thread_counts(ranks.device), step, ranks)
    if asked.precision == "auto":
        chosen = _with_precision(chosen, step, ranks)
    if asked.compile != "auto":
        return chosen.having("compile", asked.compile)
    failure = step(chosen.having("compile", "on"))
    if ranks.all_well(not failure):
        return _fastest(chosen, "compile", ("on", "off"), step, ranks)
    told: Execution = ranks.told(
        chosen.having("compile", "off", f"torch.compile fails: {failure or 'on another rank'}")
    )
    return told


def thread_counts(device: torch.device) -> Sequence[str]:
    """What may be fastest: what torch takes, and half of it, where each core runs two threads. A
    user's OMP_NUM_THREADS is obeyed."""
    usual = torch.get_num_threads()
    if device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ and usual >= 4:
        return str(usual), str(usual // 2)
    return (str(usual),)


def _with_precision(execution: Execution, step: Step, ranks: Ranks) -> Execution:
    """On CPUs compared by the processor time of one thread, which other work does not move."""
    candidates = precision.candidates(ranks.device)
    if ranks.device.type != "cpu":
        return _fastest(execution, "precision", candidates, step, ranks)
    one_thread = execution.having("threads", "1")
    found = _fastest(one_thread, "precision", candidates, step, ranks, time.thread_time)
    return found.having("threads", execution.threads)


def _fastest(
    execution: Execution,
    setting: str,
    values: Sequence[str],
    step: Step,
    ranks: Ranks,
    clock: Callable[[], float] = time.perf_counter,
) -> Execution:
    """``execution`` with the value with which ``step`` is fastest.

    Candidates take turns, so that whatever else the machine does meets them all, and the best time
    of each counts.
    """
    if len(values) == 1:
        return execution.having(setting, values[0], "the only candidate")
    best = dict.fromkeys(values, math.inf)
    began = time.perf_counter()
    for turn in range(ROUNDS + 1):
        for value in values:
            ranks.barrier()
            started = clock()
            step(execution.having(setting, value))
            ranks.barrier()
            if turn:  # the first one warms up
                best[value] = min(best[value], clock() - started)
        if turn >= FEWEST_ROUNDS and ranks.told(time.perf_counter() - began > ENOUGH_SECONDS):
            break
    chosen = _chosen(best)
    times = ", ".join(f"{value} {seconds * 1000:.1f} ms" for value, seconds in best.items())
    told: Execution = ranks.told(execution.having(setting, chosen, f"fastest step: {times}"))
    return told


def _chosen(best_seconds: Mapping[str, float]) -> str:
    """The fastest candidate; the first one unless another is faster by more than noise."""
    first = next(iter(best_seconds))
    fastest = min(best_seconds, key=lambda value: best_seconds[value])
    is_clear = best_seconds[fastest] < best_seconds[first] * (1 - MARGIN)
    return fastest if is_clear else first
