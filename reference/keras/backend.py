"""Keras 3 on TensorFlow: how it is loaded, how runs on it begin, and how they are to compute.

``keras`` and ``tf`` are taken from here, so that nothing loads them in another way.
"""

import gc
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from reference.run.autotune import Step, pick_fastest
from reference.run.config import Execution
from reference.run.ranks import Ranks, SingleProcess
from rules.errors import UserError
from rules.host import usable_processors


@contextmanager
def _libraries_kept_quiet() -> Iterator[None]:
    """What C++ libraries write to stderr meanwhile is shown only if loading them fails.

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
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # what goes wrong is raised as well
with _libraries_kept_quiet():
    import keras
    import tensorflow as tf

__all__ = ["keras", "tf"]

WEIGHTS_SUFFIX = ".npz"
FRAMEWORK = f"keras {keras.__version__} on tensorflow {tf.__version__}"
POLICIES = {"fp32": "float32", "bf16": "mixed_bfloat16"}
"""Of layers that multiply, by the names that ``--set precision=…`` knows."""


def _set_threads(count: int) -> None:
    """Operations one after the other, each on so many threads; before anything is computed."""
    tf.config.threading.set_intra_op_parallelism_threads(count)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def _usual_threads() -> int:
    """One for each core; a user's OMP_NUM_THREADS is obeyed, which TensorFlow ignores."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    return usable_processors()


_set_threads(_usual_threads())


@contextmanager
def start_ranks() -> Iterator[SingleProcess]:
    """The one process that Keras runs in here."""
    yield SingleProcess(FRAMEWORK, _accelerator())


def _accelerator() -> str | None:
    for device in tf.config.list_physical_devices("GPU"):
        details = tf.config.experimental.get_device_details(device)
        return str(details.get("device_name", "GPU"))
    return None


def free_earlier_tasks() -> None:
    """Free the tasks of earlier runs and what was traced for them."""
    keras.backend.clear_session()
    gc.collect()


def use_threads(asked: str) -> str:
    """Compute with as many threads as asked for, or as many as is usual; returns the number.

    Raises UserError where TensorFlow has already computed with another number in this process.
    """
    now = str(tf.config.threading.get_intra_op_parallelism_threads())
    if asked not in ("auto", now):
        try:
            _set_threads(int(asked))
        except RuntimeError as error:
            raise UserError(
                f"threads={asked}: TensorFlow computes with {now} in this process and cannot "
                "change; start another process"
            ) from error
        return asked
    return now


def autotune(asked: Execution, step: Step, ranks: Ranks) -> Execution:
    """``asked`` with a value, and the reason for it, in place of every ``auto`` but threads, which
    TensorFlow cannot change.

    The precision is measured without XLA, then XLA (``compile=on``) against TensorFlow's own
    graphs. On CPUs processor time counts, which other work does not move.
    """
    clock = time.perf_counter if ranks.accelerator else time.process_time
    chosen = asked.with_setting("compile", "off")
    if asked.precision == "auto":
        chosen = pick_fastest(chosen, "precision", tuple(POLICIES), step, ranks, clock)
    if asked.compile == "auto":
        return pick_fastest(chosen, "compile", ("off", "on"), step, ranks, clock)
    return chosen.with_setting("compile", asked.compile)
