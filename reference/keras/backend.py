"""Load Keras 3 on TensorFlow, start runs on it, and choose their execution settings.

Import ``keras`` and ``tf`` from here, so that they are always loaded in the same way.
"""

import gc
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from cepheid.reference.machine.ranks import Ranks, SingleProcess
from cepheid.reference.run.autotune import (
    OTHER_WORK,
    Step,
    count_idle_threads,
    measure_idle_processors,
    pick_fastest,
)
from cepheid.reference.run.execution import Execution
from cepheid.rules.errors import UserError
from cepheid.rules.host import usable_processors


@contextmanager
def _quiet_libraries() -> Iterator[None]:
    """Show what C++ libraries write to stderr only if loading them fails.

    TensorFlow reports as it is loaded that it uses oneDNN, whatever its log level.
    """
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile("w+", errors="replace") as kept:
        os.dup2(kept.fileno(), 2)
        try:
            yield
        except BaseException:
            os.dup2(stderr, 2)
            kept.seek(0)
            shutil.copyfileobj(kept, sys.stderr)
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


os.environ["KERAS_BACKEND"] = "tensorflow"  # whatever the user's keras.json says
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors are raised, too
# TensorFlow itself uses oneDNN only on processors with AVX512-VNNI or better.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
with _quiet_libraries():
    import keras
    import tensorflow as tf

__all__ = ["keras", "tf"]

WEIGHTS_SUFFIX = ".npz"
FRAMEWORK = f"keras {keras.__version__} on tensorflow {tf.__version__}"
POLICIES = {"fp32": "float32", "bf16": "mixed_bfloat16"}
"""The policies of layers that multiply, by the names of ``--set precision=…``."""


def _set_threads(count: int) -> None:
    """Run one operation at a time on ``count`` threads; call it before any computation."""
    tf.config.threading.set_intra_op_parallelism_threads(count)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def _choose_threads() -> tuple[int, str]:
    """Return a thread for each core that other work leaves idle, and the reason for fewer, or "".

    The user's OMP_NUM_THREADS, which TensorFlow itself ignores, is taken as it is.
    """
    requested = os.environ.get("OMP_NUM_THREADS", "")
    if requested.isdecimal() and int(requested) > 0:
        return int(requested), ""
    usable = usable_processors()
    idle = measure_idle_processors() if usable > 1 else 1.0
    count = count_idle_threads(usable, idle / usable)
    reason = f"{OTHER_WORK}: {idle:.1f} of {usable} processors are idle"
    return count, reason if count < usable else ""


THREADS, WHY_THREADS = _choose_threads()
_set_threads(THREADS)


@contextmanager
def start_ranks() -> Iterator[SingleProcess]:
    """Start the one process in which Keras runs here."""
    yield SingleProcess(FRAMEWORK, _find_accelerator())


def _find_accelerator() -> str | None:
    for device in tf.config.list_physical_devices("GPU"):
        details = tf.config.experimental.get_device_details(device)
        return str(details.get("device_name", "GPU"))
    return None


def read_peak_device_bytes(ranks: Ranks) -> int:
    """Return the most bytes that were allocated on the first GPU at once, that of ``ranks``."""
    return int(tf.config.experimental.get_memory_info("GPU:0")["peak"])


def free_earlier_tasks() -> None:
    """Free the tasks of earlier runs and what was traced for them."""
    keras.backend.clear_session()
    gc.collect()


def use_threads(requested: Execution) -> Execution:
    """Compute with the requested threads; return the settings with their number in place of auto.

    Raises UserError where TensorFlow has already computed with another number in this process.
    """
    threads = requested.threads
    now = str(tf.config.threading.get_intra_op_parallelism_threads())
    if threads == "auto":
        return requested.with_setting("threads", now, WHY_THREADS)
    if threads != now:
        try:
            _set_threads(int(threads))
        except RuntimeError as error:
            raise UserError(
                f"threads={threads}: TensorFlow computes with {now} in this process and cannot "
                "change; start another process"
            ) from error
    return requested


def autotune(requested: Execution, step: Step, ranks: Ranks) -> Execution:
    """Return ``requested`` with a value and a reason in place of every ``auto`` but threads.

    TensorFlow cannot change the number of threads. The precision is measured in TensorFlow's own
    graphs and with XLA (``compile=on``), then the best of each against the other. On CPUs processor
    time counts, which other work does not affect.
    """
    clock = time.perf_counter if ranks.accelerator else time.process_time
    ways = ("off", "on") if requested.compile == "auto" else (requested.compile,)
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
