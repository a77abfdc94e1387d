"""How ranks share the work on a model: settings, meshes, stages, matrices. Nothing is sent here."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from cepheid.reference.run.execution import AllReduce
from cepheid.rules.errors import UserError

STAGES, TENSOR_RANKS = "pipeline", "tensor_ranks"


@dataclass(frozen=True)
class Sharing:
    """How the ranks of a replica share its model: at most one of the two numbers is above 1."""

    stages: int = 1
    tensor_ranks: int = 1
    micro_batches: int = 1
    schedule: str = "1f1b"

    @property
    def setting(self) -> str:
        """The setting that shares the model."""
        return TENSOR_RANKS if self.tensor_ranks > 1 else STAGES

    @property
    def ranks(self) -> int:
        """The ranks of a replica."""
        return self.stages * self.tensor_ranks


class Stage(nn.Module):
    """Consecutive layers of a model, which stay those of the model; a benchmark subclasses it.

    ``forward(*activations, inputs=…, targets=…)`` returns the activations for the next stage, or
    the logits. The first stage gets the inputs in their place. Its parameters and buffers are those
    that it uses.
    """

    def describe_inputs(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        """Return the activations that it gets for a micro-batch, (n, …), on the meta device."""
        raise NotImplementedError


class Enlarge(nn.Module):
    """The nearest values of a coarse map, in the size of a finer one; ranks may have parts of both.

    Ranks that share images know it as a layer (``cepheid.reference.torch.spatial.layers``).
    """

    def forward(self, coarse: Tensor, like: Tensor) -> Tensor:
        """Map (n, channels, y, x) to the size of ``like``, (n, …, height, width)."""
        return functional.interpolate(coarse, like.shape[-2:], mode="nearest")


@dataclass(frozen=True)
class TensorPlan:
    """Which linear layers are cut, by their names in the model.

    ``columns`` maps the layers cut by their outputs to the number of equal matrices that are stored
    as one; each of them is cut. ``rows`` are the layers cut by their inputs. ``inner`` are the
    modules around such pairs: where one has ``heads``, it gets its rank's share of them, and its
    dropout differs from rank to rank.
    """

    columns: Mapping[str, int]
    rows: Sequence[str]
    inner: Sequence[str]


def refuse_uneven_parts(setting: str, parts: int, **counts: int) -> None:
    """Raise UserError unless each of ``counts``, such as layers, makes ``parts`` equal parts."""
    for what, count in counts.items():
        if count % parts:
            divisors = [str(n) for n in range(1, count + 1) if count % n == 0]
            raise UserError(
                f"{setting}={parts}: {count} {what.replace('_', ' ')} cannot be cut into {parts} "
                f"equal parts; fix: choose one of {', '.join(divisors)}"
            )


def find_shape(all_reduce: AllReduce, count: int, per_node: int) -> tuple[int, int]:
    """Return the rows and columns in which ``count`` ranks sum gradients; neighbours share a row.

    ``flat`` is one row, ``two_level`` has a row for each node, ``mesh:4`` has 4 rows. Without a
    number ``mesh`` has the divisor of the ranks nearest below their square root.

    Raises UserError where the ranks do not fill the rows evenly.
    """
    if all_reduce.way == "mesh":
        rows = all_reduce.rows or max(
            row for row in range(1, math.isqrt(count) + 1) if count % row == 0
        )
        if count % rows:
            raise UserError(
                f"all_reduce={all_reduce}: {count} ranks do not fill {rows} rows evenly; fix: "
                f"choose a divisor of {count}, or all_reduce=mesh without a number"
            )
        return rows, count // rows
    if all_reduce.way == "two_level":
        if count % per_node:
            raise UserError(
                f"all_reduce=two_level: {count} ranks do not fill nodes of {per_node} evenly; "
                "fix: start the same number on each node, or set all_reduce=flat"
            )
        return count // per_node, per_node
    return 1, count
