"""Count the floating-point operations of a model with the formulas of ``torch.utils.flop_counter``.

Products of matrices and convolutions count, two operations for each multiplication and addition;
so do their gradients. All else counts nothing, as usual for such numbers. Operations that an
implementation adds or saves are left out: the count is that of the model in eager execution, in
float32, without recomputation, without a preconditioner, without the padding of evaluations.
Torch's own counter refuses a loss that contains derivatives, and does not know the layers of LSTMs
that oneDNN and cuDNN compute as one operation. So operations are observed here, with a formula for
those.

The meta device would need no arithmetic, but boxes, proposals and masks have shapes that depend on
values; so the operations are run, for a few samples.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cepheid.benchmarks import registry
from cepheid.benchmarks.registry import import_task
from cepheid.measure.engine.noise import REAL, open_noise
from cepheid.measure.engine.options import read_command
from cepheid.measure.engine.study import Measured, Request, Study
from cepheid.measure.engine.turns import pick_create
from cepheid.reference.run.config import RunConfig, configure
from cepheid.reference.session.frameworks import find_create
from cepheid.rules.definition import Definition

if TYPE_CHECKING:
    from cepheid.reference.torch.ranks.distributed import TorchRanks

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


def count_flops(
    definition: Definition, ranks: "TorchRanks", data_root: Path, inputs: str = REAL
) -> Flops:
    """Count the operations of a definition's model for a sample.

    Noise of the real shapes suffices, but for tasks whose samples have different lengths: with
    real ``inputs`` those need the prepared dataset.
    """
    if definition.kind == "generate":
        return _count_generation(definition, ranks, data_root)
    module = import_task(definition, "torch")
    batch = f"global_batch_size={SAMPLES}"
    is_small = inputs != REAL or module.WORKLOAD.step
    overrides = (*getattr(module, "COUNT_FLOPS_WITH", ()), *([batch] if is_small else ()))
    task = pick_create(module)(_configure(definition, data_root, overrides), ranks)
    task.build()
    task.model.train()
    if task.workload.step:
        return _count_stages(task)
    if task.has_varying_shapes and inputs == REAL:
        return _count_steps(task)
    return count_passes(task, task.batch_per_rank if inputs != REAL else SAMPLES)


def count_passes(task: Any, samples: int) -> Flops:
    """Count the operations of a task's model in its own passes over samples of noise.

    It leaves gradients.
    """
    inputs, targets = task.draw_noise(samples)
    with count_operations() as counter:
        loss = task.compute_loss(inputs, targets)
        forward = counter.total()
        loss.backward()
    return _describe(counter, forward, samples, "samples of noise")


def _count_stages(task: Any) -> Flops:
    """Count steps of networks that grow, in each stage of a training.

    A stage that fades in computes the layers of the one before, too; the penalty is computed in
    one of some steps. Nothing is updated.
    """
    shape, batch = task.shape, task.config.global_batch_size
    places = {shape.values.find_start(0)}
    for start in shape.list_starts():
        places |= {start, start + (shape.values.growth_fading_samples if start else 0)}
    ordered = sorted(places)
    last = task.config.definition.timing.max_samples
    interval, total = shape.values.gan_penalty_interval_steps, Counter[str]()
    task.sharing.update = lambda *arguments: None
    open_noise(task)
    for place, end in zip(ordered, [*ordered[1:], last], strict=True):
        first = -(-place // (interval * batch)) * interval * batch
        with count_operations() as counter:
            for number in range(interval):
                task.samples = first + number * batch
                task.step()
        for name, flops in counter.items():
            total[name] += round(flops * (end - place) / last)
    return _describe(total, 0, interval * batch, "samples of noise in each stage")


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
    with count_operations() as counter:
        for _ in range(STEPS):
            for piece in task.move(task.next_pieces()):
                before = counter.total()
                loss = task.compute_loss(piece.inputs, piece.targets)
                forward += counter.total() - before
                loss.backward()
            task.samples += task.config.global_batch_size
    return _describe(counter, forward, task.samples, "samples of the dataset")


def _count_generation(definition: Definition, ranks: "TorchRanks", data_root: Path) -> Flops:
    """Count sampling and decoding in the plain version, which hides nothing in kernels."""
    plain = registry.import_module(definition.name, "plain")
    task = find_create(plain)(_configure(definition, data_root), ranks)
    task.build()
    with count_operations() as counter:
        task.decode(task.sample(SAMPLES, 0))
    return _describe(counter, counter.total(), SAMPLES, "generated images")


def _count_recurrent(times: int, inputs: Any, *weights: Any, **_: Any) -> int:
    """Count a layer of LSTMs: each place of ``inputs`` (places, sentences, …) meets all matrices.

    ``times`` is 2 for gradients of matrices and inputs. oneDNN gives the two matrices first, cuDNN
    a list.
    """
    given = weights[0] if isinstance(weights[0], list | tuple) else weights[:2]
    matrices: int = sum(each.numel() for each in given if each.dim() == 2)
    places, sentences = map(int, inputs.shape[:2])
    return times * 2 * places * sentences * matrices


RECURRENT: Mapping[str, Callable[..., int]] = {
    f"aten.{name}{suffix}": partial(_count_recurrent, times)
    for name in ("mkldnn_rnn_layer", "_cudnn_rnn")
    for suffix, times in (("", 1), ("_backward", 2))
}
"""What torch has no formula for."""


@contextmanager
def count_operations() -> Iterator[Counter[str]]:
    """Count by operator; attention is taken apart, because not all of its kernels are known."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import flop_registry

    counted = Counter[str]()

    class Observer(TorchDispatchMode):
        def __torch_dispatch__(
            self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            named = kwargs or {}
            result = operation(*args, **named)
            name = str(operation.overloadpacket)
            if formula := flop_registry.get(operation.overloadpacket):
                counted[name] += formula(*args, **named, out_val=result)
            elif own := RECURRENT.get(name):
                counted[name] += own(*args, **named)
            return result

    with sdpa_kernel(SDPBackend.MATH), Observer():
        yield counted


def _describe(counter: Counter[str], forward: int, samples: int, of: str) -> Flops:
    total = counter.total()
    shares = {name.removeprefix("aten."): flops / total for name, flops in counter.items()}
    counted = f"{samples:,} {of}"
    return Flops(round(forward / samples), round(total / samples), counted, shares)


def measure(request: Request, definition: Definition) -> Measured:
    """Count, and compare with what the definition states."""
    assert request.ranks is not None
    found = count_flops(definition, request.ranks, request.data_root, request.arguments.input)
    backward = found.total - found.forward
    parts = f"forward {found.forward:,}, backward {backward:,}; " if found.forward else ""
    shares = sorted(found.by_operator.items(), key=lambda item: -item[1])
    notes = [
        f"{found.total:,} operations for a sample ({found.total / 1e9:,.4g} GFLOP)",
        f"  {parts if definition.kind == 'train' else ''}counted over {found.counted}",
        "  " + ", ".join(f"{name} {share:.1%}" for name, share in shares),
    ]
    stated = definition.flops_per_sample
    if stated is None:
        missing = f"the definition states no flops_per_sample at {definition.scale} scale"
        return Measured(notes=[*notes, missing], facts=asdict(found))
    is_same = abs(found.total - stated) <= TOLERANCE * stated
    verdict = "" if is_same else ", which is another number"
    return Measured(
        notes=[*notes, f"the definition states {stated:,}{verdict}"],
        facts={**asdict(found), "stated": stated},
        is_fine=is_same,
    )


STUDY = Study("flops", Request.require_extras, measure, has_ranks=True, **read_command("flops"))
