"""How the arithmetic is done where the user left it open: measured on this machine.

What is chosen is kept with the result, so that all its runs compute alike (rule T18), see
``results.ResultFolder.settled``. The mathematics is the same whatever is chosen.
"""

import os
import time
from collections.abc import Sequence

import torch

from reference.run.autotune import Step, pick_fastest
from reference.run.config import Execution
from reference.torch import precision
from reference.torch.distributed import TorchRanks


def use_threads(execution: Execution) -> None:
    """Compute with as many threads as ``execution`` says, from now on."""
    if execution.threads != "auto":
        torch.set_num_threads(int(execution.threads))


def autotune(asked: Execution, step: Step, ranks: TorchRanks) -> Execution:
    """``asked`` with a value, and the reason for it, in place of every ``auto``.

    Threads and precision are compared in eager execution: compiling takes much longer than all
    that is measured here, and the precision that convolves faster does so in both. Last the
    compiled step is compared with the eager one. Of each, the likely best comes first and is kept
    unless another is clearly faster, so that noise does not choose. The first rank's choice counts
    for all.
    """
    chosen = asked.having("compile", "off")
    if asked.threads == "auto":
        chosen = pick_fastest(chosen, "threads", thread_counts(ranks.device), step, ranks)
    if asked.precision == "auto":
        chosen = _with_precision(chosen, step, ranks)
    if asked.compile != "auto":
        return chosen.having("compile", asked.compile)
    failure = step(chosen.having("compile", "on"))
    if ranks.is_true_everywhere(not failure):
        return pick_fastest(chosen, "compile", ("on", "off"), step, ranks)
    told: Execution = ranks.broadcast(
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


def _with_precision(execution: Execution, step: Step, ranks: TorchRanks) -> Execution:
    """On CPUs compared by the processor time of one thread, which other work does not move."""
    candidates = precision.candidates(ranks.device)
    if ranks.device.type != "cpu":
        return pick_fastest(execution, "precision", candidates, step, ranks)
    one_thread = execution.having("threads", "1")
    found = pick_fastest(one_thread, "precision", candidates, step, ranks, time.thread_time)
    return found.having("threads", execution.threads)
