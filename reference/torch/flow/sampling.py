"""Fast exact samples of the flow: every unit of every layer is computed once.

The plain way makes as many passes through a layer as there are features, and each pass computes all
units again. But a unit of degree d depends on the first d features only, and so is final as soon as
they are. The units of a hidden layer are sorted by degree: when feature d is found, the units of
degree d are computed, those and no others, from the units of degree ≤ d before them. All passes
together do the work of one, without the masked weights. The sums are the same but for their order.

``make_native_sampler`` does that in C++ (``sampling.cpp``), which needs a compiler.
``make_eager_sampler`` does it in torch, which needs none and also runs on GPUs, as a CUDA graph.
"""

import copy
import ctypes
import functools
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from cepheid.reference.torch.devices.kinds import find_device
from cepheid.reference.torch.flow.autoregressive import (
    MADE,
    NEGATIVE_SLOPE,
    MaskedAutoregressiveFlow,
    MaskedLinear,
)

Sampler = Callable[[Tensor], Tensor]
"""Noise (samples, features) to latents of that shape, as ``MaskedAutoregressiveFlow.sample``."""

SOURCE = Path(__file__).with_name("sampling.cpp")
COMPILER = ("g++", "-std=c++17", "-O3", "-march=native", "-shared", "-fPIC")
COMPILER_SECONDS = 60
COLUMNS = 1024  # samples that go through the layers together, so that their units stay in the cache


class NoCompilerError(Exception):
    """The C++ sampler cannot be compiled here; the message is one line."""


def make_native_sampler(flow: MaskedAutoregressiveFlow) -> Sampler:
    """Compile the sampler (seconds) with the current weights, for the CPU.

    It uses as many threads as torch does. Raises NoCompilerError.
    """
    library = _compile_library()
    counts = _count_units(flow.layers[0])
    hidden_layers, features = counts.shape[0] - 1, counts.shape[1] - 1
    table = counts.int()
    weights = torch.cat(list(_pack_weights(flow, library.most_rows())))
    samples_per_block = library.samples_per_block()

    def run(values: Tensor) -> None:
        library.sample(
            features, len(flow.layers), hidden_layers, table.data_ptr(),
            weights.data_ptr(), NEGATIVE_SLOPE, values.data_ptr(), len(values),
        )  # fmt: skip

    def sample(noise: Tensor) -> Tensor:
        latents = noise.float().clone(memory_format=torch.contiguous_format)
        blocks = -(-len(latents) // samples_per_block)
        threads = min(torch.get_num_threads(), blocks)
        if threads <= 1:
            run(latents)
            return latents
        parts = latents.split(-(-blocks // threads) * samples_per_block)
        with ThreadPoolExecutor(threads) as pool:  # ctypes lets go of the interpreter's lock
            list(pool.map(run, parts))
        return latents

    return sample


def make_plain_sampler(flow: MaskedAutoregressiveFlow) -> Sampler:
    """Return ``flow.sample`` with weights that are masked once instead of in each pass."""
    masked = copy.deepcopy(flow).requires_grad_(False)
    for made in masked.layers:
        for layer in [*made.hidden, made.output]:
            layer.weight.mul_(layer.mask)
            layer.forward = functools.partial(  # type: ignore[method-assign]
                F.linear, weight=layer.weight, bias=layer.bias
            )
    return masked.sample


def make_eager_sampler(flow: MaskedAutoregressiveFlow) -> Sampler:
    """Return the same sampler in torch, on the flow's device, with the current weights."""
    plans: dict[int, Sampler] = {}

    @torch.no_grad()
    def sample(noise: Tensor) -> Tensor:
        columns = min(len(noise), COLUMNS)
        if columns not in plans:
            plan = _Plan(flow, columns, noise.device)
            plan.run = find_device(noise.device).capture(plan.run)  # type: ignore[method-assign]
            plans[columns] = plan
        return torch.cat([plans[columns](block) for block in noise.split(columns)])

    return sample


class _Plan:
    """All operations on a block of at most ``columns`` samples, in order.

    Its buffers are (units, columns), so that the units of one degree are contiguous, and every
    operation's views are made once.
    """

    def __init__(self, flow: MaskedAutoregressiveFlow, columns: int, device: torch.device) -> None:
        def buffer(rows: int) -> Tensor:
            return torch.zeros(rows, columns, device=device)

        units = _count_units(flow.layers[0])[:, -1].tolist()
        features = units[0]
        self.noise, pair = buffer(features), buffer(2)
        activations = [buffer(count) for count in units]
        found, last = activations[0], activations[-1]
        self.latents = found
        self.operations: list[tuple[Callable[..., Tensor], tuple[Tensor, ...], Tensor]] = []

        def add(function: Callable[..., Tensor], *arguments: Tensor, out: Tensor) -> None:
            self.operations.append((function, arguments, out))

        def add_dense(layer: MaskedLinear, rows: slice, inputs: Tensor, out: Tensor) -> None:
            weight = layer.weight.detach()[rows, : len(inputs)].contiguous()
            bias = layer.bias.detach()[rows, None]
            add(torch.addmm, bias, weight, inputs, out=out)
            add(_leaky_relu, out, out=out)

        given = self.noise
        for number, made in enumerate(reversed(flow.layers)):
            if number:
                given = buffer(features)
                add(_reverse, found, out=given)
            for feature, (output, *hidden) in enumerate(_list_groups(made)):
                add_dense(made.output, output.rows, last[: output.inputs], pair)
                add(torch.exp, pair[1], out=pair[1])
                add(torch.addcmul, pair[0], given[feature], pair[1], out=found[feature])
                for index, group in enumerate(hidden):
                    inputs, outputs = activations[index], activations[index + 1]
                    if group.rows.stop > group.rows.start:
                        layer = made.hidden[index]
                        add_dense(layer, group.rows, inputs[: group.inputs], outputs[group.rows])

    def __call__(self, noise: Tensor) -> Tensor:
        """Map noise (samples, features) to latents of this shape, samples ≤ ``columns``."""
        self.noise[:, : len(noise)] = noise.T
        self.run()
        return self.latents[:, : len(noise)].T.contiguous()

    def run(self) -> None:
        """Compute ``self.latents`` from ``self.noise``, (features, columns)."""
        for function, arguments, out in self.operations:
            function(*arguments, out=out)


def _leaky_relu(values: Tensor, *, out: Tensor) -> Tensor:
    assert out is values
    return F.leaky_relu_(values, NEGATIVE_SLOPE)


def _reverse(values: Tensor, *, out: Tensor) -> Tensor:
    return out.copy_(values.flip(0))


class _Group(NamedTuple):
    """The units of one degree in a layer, and how many of its first inputs they see."""

    rows: slice
    inputs: int


def _list_groups(made: MADE) -> Iterator[list[_Group]]:
    """Yield the groups of each feature in turn.

    They are the outputs that determine it, then the units of each hidden layer that need no later
    feature.
    """
    counts = _count_units(made).tolist()
    for feature in range(len(counts[0]) - 1):
        output = _Group(slice(2 * feature, 2 * feature + 2), counts[-1][feature])
        hidden = [
            _Group(slice(own[feature], own[feature + 1]), before[feature + 1])
            for before, own in pairwise(counts)
        ]
        yield [output, *hidden]


def _count_units(made: MADE) -> Tensor:
    """Return the units of degree ≤ d, (1 + hidden layers, features + 1), the features first."""
    degrees = torch.arange(len(made.degrees[0]) + 1)
    return torch.stack([(own <= degrees[:, None]).sum(1) for own in made.degrees])


def _pack_weights(flow: MaskedAutoregressiveFlow, most_rows: int) -> Iterator[Tensor]:
    """Yield the weights as ``sampling.cpp`` reads them.

    For each group, in pieces of ``most_rows`` rows, these are the biases and then the columns.
    """
    for made in reversed(flow.layers):
        for groups in _list_groups(made):
            for layer, group in zip([made.output, *made.hidden], groups, strict=True):
                weight = layer.weight.detach()[group.rows, : group.inputs].float().cpu()
                bias = layer.bias.detach()[group.rows].float().cpu()
                for rows in torch.arange(len(bias)).split(most_rows):
                    yield bias[rows]
                    yield weight[rows].T.flatten()


def _compile_library() -> ctypes.CDLL:
    """Compile ``sampling.cpp`` for this processor; raise NoCompilerError."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "sampling.so"
        try:
            subprocess.run(
                [*COMPILER, str(SOURCE), "-o", str(target)],
                check=True, capture_output=True, text=True, timeout=COMPILER_SECONDS,
            )  # fmt: skip
            library = ctypes.CDLL(str(target))
        except subprocess.CalledProcessError as error:
            lines = error.stderr.strip().splitlines() or [str(error)]
            raise NoCompilerError(lines[0][:200]) from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoCompilerError(str(error)[:200]) from error
    pointer, size = ctypes.c_void_p, ctypes.c_long
    library.sample.argtypes = [size, size, size, pointer, pointer, ctypes.c_float, pointer, size]
    library.sample.restype = None
    return library
