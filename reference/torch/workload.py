"""What a benchmark declares for the trainer: a frozen record of plain functions.

A benchmark's ``task.py`` exports ``WORKLOAD``, a ``Workload``, and imports no trainer; the session
puts the two together (``cepheid.reference.torch.trainer``). Its functions take a *shape* first:
the frozen facts of a configuration, which ``read_shape`` reads once. This module is the stable
surface for vendors: what it names keeps its name and meaning for a round.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from cepheid.reference.data.order import Share
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.execution import Execution
from cepheid.reference.run.report import Table
from cepheid.reference.torch.devices.values import find_values, to_device
from cepheid.reference.torch.pieces import Piece, Pieces

Shape = TypeVar("Shape")
Both = tuple[Tensor, Tensor]  # inputs and targets, (n, …) both
Groups = Sequence[dict[str, Any]]  # of parameters, as torch's optimizers have them
OnProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class Recipe:
    """How to make an optimizer: its type, its groups of parameters, and options of all groups."""

    kind: type[torch.optim.Optimizer]
    groups: Sequence[Mapping[str, Any]]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Network:
    """A network in use: a call runs it at the precision of the run, ``module`` is the network.

    In training a call goes through what averages the gradients, in evaluation it does not. A
    benchmark that calls parts of ``module`` enters ``autocast`` itself.
    """

    call: Callable[..., Any]
    module: Any
    autocast: Callable[[], AbstractContextManager[object]]

    def __call__(self, *inputs: Any) -> Any:
        """Return what the network computes for the inputs."""
        with self.autocast():
            return self.call(*inputs)


class Ranks(Protocol):
    """What a workload may ask of the ranks of a run (``TorchRanks``)."""

    @property
    def rank(self) -> int:
        """The number of this rank."""

    @property
    def world_size(self) -> int:
        """The number of all ranks."""

    @property
    def partitions(self) -> int:
        """The number of ranks of a replica."""

    @property
    def device(self) -> torch.device:
        """The device that this rank drives."""

    @property
    def is_first(self) -> bool:
        """Whether this rank is the first one."""

    @property
    def replica(self) -> int:
        """The number of this rank's replica."""

    @property
    def replicas(self) -> int:
        """The number of replicas."""

    @property
    def ranks_per_node(self) -> int:
        """The number of ranks on this machine."""

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of ``values``, of any shape, over all ranks, on the host."""

    def broadcast(self, message: Any) -> Any:
        """Return the first rank's ``message``."""

    def all_gather_object(self, message: Any) -> list[Any]:
        """Return every rank's ``message``, by rank."""


@dataclass(frozen=True)
class Seat:
    """Where this rank sits: its ranks, and the samples of its share of a global batch.

    ``workers`` are the threads that decode images for it. ``piece`` samples are taken at once, and
    ``execution`` has the settings in use; both are known once the warm-up has chosen them.
    ``source`` is the module of the definition's dataset and ``folder`` where it lies: a workload
    imports no dataset.
    """

    ranks: Ranks
    batch: int
    workers: int = 1
    piece: int = 0
    execution: Execution = field(default_factory=Execution)
    source: Any = None
    folder: Path = Path()

    def load(self) -> Any:
        """Return the definition's dataset, open."""
        return self.source.load(self.folder)

    @property
    def share(self) -> Share:
        """This rank's part of the data."""
        return Share(self.ranks.rank, self.ranks.world_size, self.batch, self.ranks.partitions)

    @property
    def pins(self) -> bool:
        """Whether the rank's device copies from pinned memory, in which batches are then made."""
        return find_values(self.ranks.device).pins

    def find_first(self, samples: int) -> int:
        """Return the place of its first sample of the batch after ``samples`` among all."""
        return samples + self.ranks.replica * self.batch

    def split(self, rows: np.ndarray, size: int) -> Iterator[np.ndarray]:
        """Yield this rank's share of ``rows`` (n,) in batches of at most ``size``."""
        share = rows[self.ranks.rank :: self.ranks.world_size]
        for first in range(0, len(share), size):
            yield share[first : first + size]


@dataclass(frozen=True)
class Moment:
    """A place in the training of this rank: after ``samples`` of all ranks, at ``first`` of them.

    ``first`` is the place of the next sample of this rank, ``count`` how many it takes at once.
    ``has_matrices`` says that ranks share the matrices of the network.
    """

    samples: int
    first: int
    count: int
    seat: Seat
    has_matrices: bool = False


class Data(Protocol):
    """An open dataset. A thread reads it ahead. Tensors come on the CPU; the trainer moves them."""

    def take(self, samples: int, size: int) -> Pieces:
        """Return this rank's share of the batch after ``samples`` in pieces, of nothing else."""


@dataclass(frozen=True)
class Update:
    """An update that is about to happen, after which ``samples`` are trained."""

    samples: int
    groups: Groups
    clip: Callable[[Groups, float], None]
    """Scale the gradients of these groups so that their norm together is at most the number."""


@dataclass(frozen=True)
class Inference:
    """The trained network and the open data, for what follows training: without gradients.

    A call predicts; its inputs may lie anywhere. ``functions`` are those that the workload declares
    beside ``predict``. ``size`` is the number of samples of a batch of the evaluation.
    """

    predict: Callable[..., Any]
    functions: Mapping[str, Callable[..., Any]]
    network: Network
    data: Any
    seat: Seat
    size: int
    samples: int

    def __call__(self, *inputs: Any) -> Any:
        """Return what the workload predicts for inputs (n, …)."""
        return self.predict(*inputs)

    @property
    def ranks(self) -> Ranks:
        """The ranks of the run."""
        return self.seat.ranks

    def to_device(self, values: Any) -> Tensor:
        """Return values (…) on this rank's device, in the same shape and type."""
        return to_device(values, self.ranks.device)

    def make_sums(self, *shape: int) -> Tensor:
        """Return zeros of any shape, in which sums of ``widen`` are exact."""
        return find_values(self.ranks.device).make_sums(*shape)


@dataclass(frozen=True)
class Evaluation:
    """An evaluation: what is logged, and what report and pictures show of it."""

    metrics: Mapping[str, float]
    details: Any = None


@dataclass(frozen=True)
class Result:
    """What a run has left on the first rank: for the report and the pictures.

    ``curve`` has the samples and the metrics of each evaluation, ``details`` is of the last one.
    ``seconds`` of this process are "training" and "evaluation"; ``preconditioner`` is its own.
    """

    inference: Inference
    details: Any
    curve: Sequence[tuple[int, Mapping[str, float]]]
    seconds: Mapping[str, float]
    preconditioner: Any = None

    @property
    def data(self) -> Any:
        """The open data."""
        return self.inference.data


@dataclass(frozen=True)
class Spans:
    """Batch norms over spans of so many consecutive samples; 0 stands for the global batch."""

    samples: int


@dataclass(frozen=True)
class Inputs:
    """A batch norm of the network's inputs over the global batch.

    It takes ``epsilon`` and ``momentum``, the share that running statistics keep, and also returns
    what it multiplies and adds: ``scale_and_shift`` of inputs (n, channels, …), (channels,) both.
    """


class Norms(Protocol):
    """What makes the batch norms of a network that declares ``Spans`` or ``Inputs``."""

    def make(self, **options: Any) -> Callable[[int], nn.Module]:
        """Return what makes a norm for a number of channels. All ranks call it."""


@dataclass(frozen=True)
class Maps:
    """The layers of a network whose images the ranks of a replica may share.

    ``averaged`` names the layers that take the mean over the last map, ``gathered`` those whose
    maps are the network's result, with the places of the ranks of a replica of so many that get
    them whole. ``part`` is the module that takes the images, where that is not the network.
    """

    averaged: Callable[[Any], Sequence[str]] = lambda part: ()
    gathered: Callable[[Any, int], Mapping[str, Sequence[int]]] = lambda part, ranks: {}
    part: Callable[[Any], Any] = lambda network: network


@dataclass(frozen=True, kw_only=True)
class Stages(Generic[Shape]):
    """How the ranks of a replica share the layers of a network, in a pipeline.

    ``cut`` returns so many stages of the network. ``sum_losses`` takes logits and targets.
    ``counts`` are what the number of stages must divide, ``fill`` completes a piece to equal
    micro-batches, with samples that have no loss; without it they must divide a replica's share.
    """

    cut: Callable[[Shape, Any, int], Sequence[Any]]
    sum_losses: Callable[[Shape, Tensor, Tensor], Tensor]
    counts: Callable[[Shape], Mapping[str, int]] = lambda shape: {}
    count_losses: Callable[[Tensor], Tensor] = lambda targets: targets.new_full((), len(targets))
    fill: Callable[[Piece, int], Piece] | None = None


@dataclass(frozen=True, kw_only=True)
class Matrices(Generic[Shape]):
    """How the ranks of a replica share the matrices of a network.

    ``counts`` are what the number of ranks must divide.
    """

    plan: Callable[[Shape, Any], Any]
    counts: Callable[[Shape], Mapping[str, int]] = lambda shape: {}


@dataclass(frozen=True, kw_only=True)
class Passes(Generic[Shape]):
    """A way to take a share in passes whose memory depends on something else than samples.

    ``limit`` returns the samples of a pass of noise for a share of so many. ``make_smaller``
    returns settings with smaller passes, or None. ``explain`` returns what needs too much memory,
    and the fix.
    """

    limit: Callable[[Shape, Execution, int], int]
    make_smaller: Callable[[Shape, Execution], Execution | None]
    explain: Callable[[Shape, Execution], tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Workload(Generic[Shape]):
    """A benchmark on torch, all that a trainer sees of it; a task exports it as ``WORKLOAD``.

    All functions but ``read_shape`` take the shape first. A variant of a benchmark is
    ``dataclasses.replace(WORKLOAD, …)``.
    """

    read_shape: Callable[[RunConfig], Shape]
    """Return the frozen facts of a configuration; raise UserError for a contradiction."""
    make_network: Callable[[Shape, Norms], nn.Module]
    """Return the network, initialised from torch's global generator, on the CPU."""
    make_optimizer: Callable[[Shape, Any], Recipe]
    """Return the recipe of the optimizer for the network."""
    compute_loss: Callable[[Shape, Network, Tensor, Tensor], Tensor]
    """Return the mean loss of inputs and targets, a scalar with gradients."""
    predict: Callable[..., Any]
    """Return what an evaluation computes, for (shape, network, inputs, …)."""
    make_noise: Callable[[Shape, int, torch.Generator], Both]
    """Return inputs and targets of the real shapes, (count, …), without reading the dataset."""
    open_data: Callable[[Shape, Seat], Any]
    """Touch the dataset for the first time; return it open, a ``Data``."""
    prepare_update: Callable[[Shape, Update], None]
    """Set the learning rates of an update; clip the gradients, where needed."""
    evaluate: Callable[[Shape, Inference], Evaluation]
    """Return all metrics over the whole evaluation set, the same on every rank."""
    evaluation_batch: Callable[[Shape], int] = lambda shape: 256
    """Return the samples of a batch of the evaluation; the whole set may be smaller."""

    # Only where a benchmark has them:
    norms: Callable[[Shape], Spans | Inputs | None] = lambda shape: None
    """Return what the batch norms of the network normalise over."""
    maps: Maps | None = None
    stages: Stages[Shape] | None = None
    matrices: Matrices[Shape] | None = None
    passes: Passes[Shape] | None = None
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """Functions like ``predict`` by name, compiled where ``predict`` is."""
    make_preconditioner: Callable[[Shape, Seat], Any] | None = None
    """Return a ``cepheid.reference.torch.preconditioner.Preconditioner``, or None."""
    save_data: Callable[[Any], Mapping[str, Any]] = lambda data: {}
    restore_data: Callable[[Any, Mapping[str, Any]], None] = lambda data, state: None
    """Return what a resumed run needs of the data; go on from it. Data may not be open (None)."""
    check: Callable[[Shape, Seat], None] = lambda shape, seat: None
    """Raise UserError where this rank's share of a global batch contradicts the configuration."""
    before_step: Callable[[Shape, Any, Moment], None] | None = None
    """Prepare the module of the network for a step, for example its noise."""
    before_piece: Callable[[Shape, Any, Moment], None] | None = None
    """Prepare the module of the network for a piece of a step, also of noise."""
    after_update: Callable[[Shape, Any], None] | None = None
    """Change the module of the network after an update."""
    step: Callable[[Any], Tensor] | None = None
    """Run a step of another kind on the trainer, for example two updates; return the loss."""
    noise_samples: Callable[[Shape], Sequence[int]] = lambda shape: (0,)
    """Return the places of the training at which the warm-up runs a step, the largest first."""
    draw_other_noise: Callable[[Shape, torch.Generator], Both] | None = None
    """Return a batch that a compiled step has another graph for."""
    predict_noise: Callable[[Shape, Inference, Both], None] | None = None
    """Compute once, in its shapes, what an evaluation computes; by default one prediction."""
    load_given: Callable[[Shape, Any], str | None] | None = None
    """Load the weights from which the definition starts into the network; return their digest."""
    measure_afterwards: Callable[[Any], Mapping[str, float]] | None = None
    """Measure something on the trainer after the clock has stopped; return events and values."""
    report: Callable[[Shape, Result, OnProgress], Sequence[Table]] | None = None
    pictures: Callable[[Shape, Result], Any] | None = None
    list_notes: Callable[[Shape, Seat], Sequence[str]] = lambda shape, seat: ()
    """Return what a plan should tell about the settings though they are allowed."""
    describe: Callable[[Shape], Mapping[str, Any]] = lambda shape: {}
    """Return further facts of the implementation, for readers of the log."""
    has_varying_shapes: bool = False  # of inputs, from pass to pass; one graph shall serve all
    is_static: bool = False  # each pass runs the same operations; no value of Python matters
    averages_early: bool = False  # gradients, while they are made: each pass calls the network
    has_own_pace: bool = False  # ranks take different numbers of passes in a step
    compiles_loss: bool = True
    compiles_predict: bool = True
    takes_whole_share: bool = False  # a rank's share of a step cannot be taken in pieces

    def vary(self, **changes: Any) -> "Workload[Shape]":
        """Return a variant of the benchmark, of which nothing is known if its loss is another."""
        if "compute_loss" in changes:
            changes = {"is_static": False, "averages_early": False, **changes}
        return replace(self, **changes)
