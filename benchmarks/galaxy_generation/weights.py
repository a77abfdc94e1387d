"""The published weights: decoder and flow of a galaxy_vae run, one safetensors file per scale.

    python -m cepheid.benchmarks.galaxy_generation.weights CHECKPOINT [--scale mini]
        [--store float16]

reads a checkpoint of `cepheid run galaxy_vae` (``checkpoints/…/run_0.pt``), writes
``weights/<scale>.safetensors`` and prints the digest for ``benchmark.yaml``. The published weights
were trained longer, by ``training``.
"""

import argparse
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from cepheid.benchmarks.galaxy_generation.model import Generative
from cepheid.benchmarks.galaxy_generation.weights_file import (
    UNTRAINED,
    find_path,
    find_published,
    other_network,
    read_file,
)
from cepheid.reference.run import checkpoint
from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch.execution import seed_everything
from cepheid.rules.definition import Definition
from cepheid.rules.definition import load as load_definition
from cepheid.rules.errors import UserError, run_script
from cepheid.rules.host import atomic_write

PARTS = ("decoder.", "flow.")
FORMATS = {"float32": torch.float32, "float16": torch.float16}


class Weights(NamedTuple):
    """The tensors of ``model.Generative`` and the SHA-256 of their file."""

    tensors: Mapping[str, Tensor]
    digest: str


def read_published(config: RunConfig) -> Weights:
    """Return the weights of the definition; in the open division those of any file.

    Raises UserError as ``read_weights``, and for those of another network.
    """
    path, expected = find_published(config)
    found = read_weights(path, expected)
    refuse_other_network(str(path), found.tensors, config.definition)
    return found


def refuse_other_network(what: str, tensors: Mapping[str, Tensor], definition: Definition) -> None:
    """Raise UserError unless the tensors, of any shape, have names and shapes of the definition."""
    with torch.device("meta"):
        wanted = Generative(definition.model, definition.data).state_dict()
    for name in [*wanted, *tensors]:
        shapes = [tuple(each[name].shape) if name in each else None for each in (wanted, tensors)]
        if shapes[0] != shapes[1]:
            raise other_network(what, name, *shapes)


def read_or_make(config: RunConfig) -> Weights:
    """Return published weights, or untrained ones, which take as long, where there are none."""
    if find_path(config.definition.scale).is_file():
        return read_published(config)
    return make_untrained(config)


def make_untrained(config: RunConfig) -> Weights:
    """Return the first weights of a training of galaxy_vae with the run's seed.

    The flow is the identity and the decoder has not learnt anything.
    """
    seed_everything(config.seed)
    model = Generative(config.definition.model, config.definition.data)
    for layer in model.flow.layers:
        nn.init.zeros_(layer.output.weight)
    return Weights(model.state_dict(), UNTRAINED)


def read_weights(path: Path, expected_digest: str | None) -> Weights:
    """Return the weights in a file, as float32 whatever they are stored in.

    Raises UserError where it is damaged, and as ``read_file``.
    """
    content, digest = read_file(path, expected_digest)
    try:
        tensors = {key: value.float() for key, value in load(content).items()}
    except SafetensorError as error:
        raise UserError(f"{path}: not a safetensors file ({error})") from error
    return Weights(tensors, digest)


def select_parts(
    state: Mapping[str, Tensor], dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """Return decoder and flow of the state of a ``GalaxyVae``, as ``dtype`` and the same shapes."""
    kept = {
        key: value.to(dtype).contiguous() for key, value in state.items() if key.startswith(PARTS)
    }
    if not kept:
        raise UserError("the checkpoint has no decoder and no flow: give one of galaxy_vae")
    return kept


def write_weights(scale: str, state: Mapping[str, Tensor], store: str = "float32") -> None:
    """Write the file of a scale from the state of a ``GalaxyVae``, and print its digest.

    The tensors keep their shapes and are stored in the format ``store``. Raises UserError for the
    state of another network than that of the scale.
    """
    target = find_path(scale)
    parts = select_parts(state, FORMATS[store])
    refuse_other_network(f"--scale {scale}", parts, load_definition("galaxy_generation", scale))
    target.parent.mkdir(exist_ok=True)
    content = save(parts, metadata={"made_by": "galaxy_vae"})
    atomic_write(target, content)
    print(f"{target}: {len(content) / 1e6:.1f} MB")
    print(f"weights_digest: {hashlib.sha256(content).hexdigest()}")


def add_store_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--store``, the format of the numbers in the file."""
    parser.add_argument(
        "--store",
        default="float32",
        choices=tuple(FORMATS),
        help="the format of the numbers in the file (default: %(default)s)",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Write the file and print its digest."""
    parser = argparse.ArgumentParser(prog="python -m cepheid.benchmarks.galaxy_generation.weights")
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT")
    parser.add_argument("--scale", default="mini", choices=("mini", "full"))
    add_store_option(parser)
    arguments = parser.parse_args(argv)
    state = checkpoint.load(arguments.checkpoint).get("model", {})
    write_weights(arguments.scale, state, arguments.store)
    return 0


if __name__ == "__main__":
    run_script(main)
