"""The networks of the benchmarks as modules of torch, with weights where there are any.

    >>> model = cepheid.models.load("galaxy_generation", scale="full")
    >>> galaxies = model.generate(10)

What a network takes and returns stands at its ``forward``, in ``model.py`` of its benchmark. Those
of the galaxies take stamps (n, bands, y, x), float32 in units of the sky noise, as
``cepheid.datasets`` has them:

galaxy_shape, galaxy_bnn
    return the mean of (e1, e2), (n, 2), and L, (n, 2, 2), lower triangular; L·Lᵀ is the covariance
galaxy_generation
    ``generate(count, seed)`` returns new galaxies, (count, bands, y, x), in units of the sky noise

A network starts on the processor, and moves as any other: ``model.to("cuda")``.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from cepheid.rules import definition, extras
from cepheid.rules.errors import UserError

if TYPE_CHECKING:
    from torch import nn

    from cepheid.benchmarks.galaxy_generation.model import Generative

INITIAL = "initial"


@overload
def load(
    name: Literal["galaxy_generation"], scale: str = "mini", weights: str | Path = ""
) -> "Generative": ...


@overload
def load(name: str, scale: str = "mini", weights: str | Path = "") -> "nn.Module": ...


def load(name: str, scale: str = "mini", weights: str | Path = "") -> "nn.Module":
    """Return the network of a benchmark, in evaluation mode unless its weights are initial.

    ``weights`` are a file that a run left, ``checkpoints/…/run_0.pt`` in its output, or "initial",
    drawn from torch's global generator as a run draws them. Left out, they are the published ones,
    which galaxy_generation has. Raises UserError where there are none, and for weights of another
    network.
    """
    chosen = definition.load(name, scale)
    extras.require_for_runs(chosen.extras)

    from cepheid.benchmarks import registry
    from cepheid.reference.run.config import configure

    config = configure(chosen)
    if chosen.kind == "generate":
        return _load_generative(config, weights)
    if not weights:
        raise UserError(
            f"{name} has no published weights; fix: give weights of a run, "
            f'weights="…/checkpoints/…/run_0.pt", or weights="{INITIAL}" to train it'
        )
    workload = registry.import_task(chosen, "torch").WORKLOAD
    shape = workload.read_shape(config)
    network: nn.Module = workload.make_network(shape, _Norms(workload.norms(shape)))
    return network if weights == INITIAL else _fill(network, Path(weights))


class _Norms:
    """What makes the batch norms of a network that is trained alone: over the whole batch."""

    def __init__(self, declared: Any) -> None:
        self._declared = declared

    def make(self, **options: Any) -> Any:
        """Return what makes a norm for a number of channels."""
        from functools import partial

        from cepheid.reference.torch.batch_norm import GroupBatchNorm2d, SpanBatchNorm2d
        from cepheid.reference.torch.ranks.collectives import Span
        from cepheid.reference.torch.workload import Inputs

        if isinstance(self._declared, Inputs):
            return partial(GroupBatchNorm2d, **options)
        return partial(SpanBatchNorm2d, over=Span(), **options)


def _load_generative(config: Any, weights: str | Path) -> "nn.Module":
    from cepheid.benchmarks.galaxy_generation.model import Generative
    from cepheid.benchmarks.galaxy_generation.weights import read_published, read_weights

    network = Generative(config.definition.model, config.definition.data)
    if weights == INITIAL:
        return network
    if not weights or Path(weights).suffix == ".safetensors":
        found = read_weights(Path(weights), None) if weights else read_published(config)
        return _load_state(network, found.tensors, weights or "the published weights")
    return _fill(network, Path(weights), only=("decoder.", "flow."))


def _fill(network: "nn.Module", path: Path, only: tuple[str, ...] = ("",)) -> "nn.Module":
    """Give a network the weights of a checkpoint whose names begin so; return it for evaluation."""
    from cepheid.reference.run import checkpoint

    state = checkpoint.load(path).get("model", {})
    return _load_state(network, {k: v for k, v in state.items() if k.startswith(only)}, path)


def _load_state(network: "nn.Module", state: Any, source: object) -> "nn.Module":
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        first = str(error).strip().splitlines()[-1].strip()
        raise UserError(
            f"{source}: these are weights of another network ({first}); fix: give those of the "
            "same benchmark and scale"
        ) from error
    return network.eval()
