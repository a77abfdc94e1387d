"""Peaks of a machine without torch: by JAX on its accelerator, by NumPy on processors.

A description then has what a product of matrices and a copy reach, as it has from torch's kernels.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from cepheid.rules.extras import find_missing

SIDE, COPIED_BYTES = 2048, 2**27  # of the matrices, and of the copy, on processors
DEVICE_SIDE, DEVICE_BYTES = 8192, 2**30
SECONDS, REPETITIONS_MIN, DIGITS = 0.3, 3, 4  # for each kernel


def measure_peaks(accelerators: int) -> tuple[Mapping[str, Any], str]:
    """Return the peaks as a description has them, and with what they were measured.

    Both are empty where nothing that is installed can: processors are no measure of accelerators.
    """
    if not find_missing(["jax"]):
        import jax

        if jax.default_backend() != "cpu":
            return _measure_jax(), f"JAX {jax.__version__}"
    if accelerators or find_missing(["numpy"]):
        return {}, ""
    import numpy as np

    return _measure_numpy(), f"NumPy {np.__version__}"


def _measure_numpy() -> Mapping[str, Any]:
    """Measure products of all threads of NumPy's library, and a copy by one thread."""
    import numpy as np

    random, tflops = np.random.default_rng(0), {}
    for name, kind in (("fp64", np.float64), ("fp32", np.float32)):
        left, right = (random.random((SIDE, SIDE)).astype(kind) for _ in range(2))
        out = np.empty_like(left)
        seconds = time_best(partial(np.matmul, left, right, out=out))
        tflops[name] = 2 * SIDE**3 / seconds / 1e12
    source = np.ones(COPIED_BYTES // 4, np.float32)
    target = np.empty_like(source)
    copied = 2 * source.nbytes / time_best(partial(np.copyto, target, source)) / 1e9
    return describe(tflops, copied)


def _measure_jax(side: int = DEVICE_SIDE, copied_bytes: int = DEVICE_BYTES) -> Mapping[str, Any]:
    """Measure products and a copy on the first device of JAX."""
    import jax
    from jax import numpy as jnp

    def call(kernel: Callable[..., Any], *arrays: Any) -> None:
        jax.block_until_ready(kernel(*arrays))

    tflops = {}
    multiply = jax.jit(partial(jnp.matmul, precision="highest"))
    for name, kind in (("fp32", jnp.float32), ("bf16", jnp.bfloat16)):
        left, right = (jnp.full((side, side), 0.5, kind) for _ in range(2))
        seconds = time_best(partial(call, multiply, left, right))
        tflops[name] = 2 * side**3 / seconds / 1e12
    source = jnp.ones(copied_bytes // 4, jnp.float32)
    add = jax.jit(partial(jnp.add, 1))  # what a compiler cannot leave out
    seconds = time_best(partial(call, add, source))
    return describe(tflops, 2 * source.nbytes / seconds / 1e9)


def describe(tflops: Mapping[str, float], copied: float) -> Mapping[str, Any]:
    """Return ``peak_tflops`` and ``memory_gb_per_second``, as a description has them."""
    return {
        "peak_tflops": {name: {"measured": _round(value)} for name, value in tflops.items()},
        "memory_gb_per_second": {"measured": _round(copied)},
    }


def _round(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def time_best(kernel: Callable[[], object]) -> float:
    """Return the seconds of the fastest call of several, after one that is not timed."""
    kernel()
    best, count, began = float("inf"), 0, time.perf_counter()
    while count < REPETITIONS_MIN or time.perf_counter() - began < SECONDS:
        started = time.perf_counter()
        kernel()
        best, count = min(best, time.perf_counter() - started), count + 1
    return best
