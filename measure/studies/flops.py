"""Count the floating-point operations of a model with ``torch.utils.flop_counter``.

Products of matrices and convolutions count, two operations for each multiplication and addition;
so do their gradients. All else counts nothing, as usual for such numbers. Operations that an
implementation adds or saves are left out: the count is that of the model in eager execution, in
float32, without recomputation, without a preconditioner, without the padding of evaluations.

The meta device would need no arithmetic, but boxes, proposals and masks have shapes that depend on
values; so the operations are run, for a few samples.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cepheid.benchmarks import registry
from cepheid.benchmarks.registry import import_task
from cepheid.measure.engine import options
from cepheid.measure.engine.study import Measured, Request, Study
from cepheid.measure.engine.turns import pick_create
from cepheid.reference.run.config import RunConfig, configure
from cepheid.reference.session.frameworks import find_create
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError

if TYPE_CHECKING:
    from torch.utils.flop_counter import FlopCounterMode

    from cepheid.reference.torch.ranks.distributed import TorchRanks

DESCRIPTION = """\
Count the floating-point operations that the model of a benchmark needs for a sample: products of
matrices and convolutions, two operations for each multiplication and addition, as PyTorch's
torch.utils.flop_counter counts them. For a benchmark that trains: forward and backward; for one
that generates: from noise to an image. Only benchmarks whose samples have different lengths need
their dataset.

The definition states the number as flops_per_sample; results show by it what share of the peak of
their system they reach (MFU).
"""
EXAMPLES = """\
examples:
  cepheid measure flops galaxy_shape --scale mini
  cepheid measure flops resnet50

exit codes: 0 counted; 1 counted, but the definition states another number; 2 wrong use
"""
TOLERANCE = 0.01  # where the shapes depend on values or on the batch
SAMPLES = 2  # one sample has no variance over a batch
STEPS = 20  # of a task whose samples have different lengths
PLAINLY = ("precision=fp32", "compile=off")


@dataclass(frozen=True)
class Flops:
    """Floating-point operations for a sample, rounded; ``total`` is forward and backward.

    ``counted`` says over how many samples of what; ``by_operator`` are shares of the total.
    """

    forward: int
    total: int
    counted: str
    by_operator: dict[str, float]


def count_flops(definition: Definition, ranks: "TorchRanks", data_root: Path) -> Flops:
    """Count the operations of a definition's model for a sample.

    Noise of the real shapes suffices, but for tasks whose samples have different lengths: those
    need the prepared dataset. Raises UserError for a loss that contains derivatives, which the
    counter refuses.
    """
    if definition.kind == "generate":
        return _count_generation(definition, ranks, data_root)
    module = import_task(definition, "torch")
    overrides = getattr(module, "COUNT_FLOPS_WITH", ())
    config = _configure(definition, data_root, overrides)
    task = pick_create(module)(config, ranks)
    task.build()
    task.model.train()
    if task.has_varying_shapes:
        return _count_steps(task)
    return count_passes(task, SAMPLES)


def count_passes(task: Any, samples: int) -> Flops:
    """Count the operations of a task's model in its own passes over samples of noise.

    It leaves gradients. Raises UserError as ``count_flops``.
    """
    inputs, targets = task.draw_noise(samples)
    with _count() as counter:
        try:
            loss = task.compute_loss(inputs, targets)
        except RuntimeError as error:
            if "autograd.grad" not in str(error):
                raise
            raise UserError(
                f"{task.definition.name}: its loss contains derivatives, which torch's counter of "
                "operations refuses, so its definition states none"
            ) from error
        forward = counter.get_total_flops()
        loss.backward()
    return _describe(counter, forward, samples, "samples of noise")


def _configure(definition: Definition, data_root: Path, overrides: Sequence[str] = ()) -> RunConfig:
    return configure(
        definition,
        division="open" if overrides else "closed",
        overrides=[*PLAINLY, *overrides],
        data_root=data_root,
        seed=1,
    )


def _count_steps(task: Any) -> Flops:
    """Count whole steps on real data, with the padding that their batches have."""
    task.open_data()
    forward = 0
    with _count() as counter:
        for _ in range(STEPS):
            for piece in task.move(task.next_pieces()):
                before = counter.get_total_flops()
                loss = task.compute_loss(piece.inputs, piece.targets)
                forward += counter.get_total_flops() - before
                loss.backward()
            task.samples += task.config.global_batch_size
    return _describe(counter, forward, task.samples, "samples of the dataset")


def _count_generation(definition: Definition, ranks: "TorchRanks", data_root: Path) -> Flops:
    """Count sampling and decoding in the plain version, which hides nothing in kernels."""
    plain = registry.import_module(definition.name, "plain")
    task = find_create(plain)(_configure(definition, data_root), ranks)
    task.build()
    with _count() as counter:
        task.decode(task.sample(SAMPLES, 0))
    return _describe(counter, counter.get_total_flops(), SAMPLES, "generated images")


@contextmanager
def _count() -> Iterator["FlopCounterMode"]:
    """Count; attention is taken apart, because the counter does not know all of its kernels."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        yield counter


def _describe(counter: "FlopCounterMode", forward: int, samples: int, of: str) -> Flops:
    total = counter.get_total_flops()
    shares = {
        str(operator).removeprefix("aten."): flops / total
        for operator, flops in counter.get_flop_counts()["Global"].items()
    }
    counted = f"{samples:,} {of}"
    return Flops(round(forward / samples), round(total / samples), counted, shares)


def measure(request: Request, definition: Definition) -> Measured:
    """Count, and compare with what the definition states."""
    assert request.ranks is not None
    found = count_flops(definition, request.ranks, request.data_root)
    parts = f"forward {found.forward:,}, backward {found.total - found.forward:,}; "
    shares = sorted(found.by_operator.items(), key=lambda item: -item[1])
    notes = [
        f"{found.total:,} operations for a sample ({found.total / 1e9:,.4g} GFLOP)",
        f"  {parts if definition.kind == 'train' else ''}counted over {found.counted}",
        "  " + ", ".join(f"{name} {share:.1%}" for name, share in shares),
    ]
    stated = definition.flops_per_sample
    if stated is None:
        missing = f"the definition states no flops_per_sample at {definition.scale} scale"
        return Measured(notes=[*notes, missing])
    is_same = abs(found.total - stated) <= TOLERANCE * stated
    verdict = "" if is_same else ", which is another number"
    return Measured(notes=[*notes, f"the definition states {stated:,}{verdict}"], is_fine=is_same)


STUDY = Study(
    "flops",
    Request.require_extras,
    measure,
    has_ranks=True,
    description=DESCRIPTION,
    examples=EXAMPLES,
    options=(*options.offer_benchmark(), options.DATA, *options.DEVICES),
)
