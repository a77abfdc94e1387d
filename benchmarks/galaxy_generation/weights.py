"""The published weights: decoder and flow of a galaxy_vae run, as one safetensors file per scale.

    python -m benchmarks.galaxy_generation.weights CHECKPOINT [--scale mini]

takes them from a checkpoint that `cepheid run galaxy_vae` left (``checkpoints/…/run_0.pt``), writes
``weights/<scale>.safetensors`` and prints the digest that belongs into ``benchmark.yaml``. Those
that are published were trained longer, by ``training``.
"""

import argparse
import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from benchmarks.galaxy_generation.model import Generative
from reference.run import checkpoint
from reference.run.config import RunConfig
from reference.run.seeding import seed_everything
from rules import definition
from rules.errors import UserError
from rules.host import atomic_write

FOLDER = definition.BENCHMARKS / "galaxy_generation" / "weights"  # also for a copy of this file
PARTS = ("decoder.", "flow.")
UNTRAINED = "untrained"


class Weights(NamedTuple):
    """The tensors of ``model.Generative`` and the SHA-256 of their file."""

    tensors: Mapping[str, Tensor]
    digest: str


def published(config: RunConfig) -> Weights:
    """Those of the definition; in the open division whatever the file holds. Raises UserError."""
    expected = config.definition.model.get("weights_digest")
    return read(path_of(config.definition.scale), expected if config.division == "closed" else None)


def published_or_untrained(config: RunConfig) -> Weights:
    """Untrained ones where nobody has trained at this scale yet: they take as long."""
    if path_of(config.definition.scale).is_file():
        return published(config)
    return untrained(config)


def untrained(config: RunConfig) -> Weights:
    """As the training of galaxy_vae begins, by the run's seed: a flow that changes nothing, and a
    decoder that knows nothing."""
    seed_everything(config.seed)
    model = Generative(config.definition.model, config.definition.data)
    for layer in model.flow.layers:
        nn.init.zeros_(layer.output.weight)
    return Weights(model.state_dict(), UNTRAINED)


def path_of(scale: str) -> Path:
    """Where the weights of a scale are."""
    return FOLDER / f"{scale}.safetensors"


def read(path: Path, expected_digest: str | None) -> Weights:
    """What a file holds.

    Raises UserError where it is missing or damaged, or where its digest is not the expected one
    (None: any will do).
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise UserError(
            f"{path}: missing; a run of galaxy_vae makes weights, and "
            "`python -m benchmarks.galaxy_generation.weights CHECKPOINT` puts them there"
        ) from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    digest = hashlib.sha256(content).hexdigest()
    if expected_digest not in (None, digest):
        raise UserError(
            f"{path}: its SHA-256 is {digest[:12]}…, the definition's weights have "
            f"{str(expected_digest)[:12]}…; the closed division generates with those (rule T25): "
            "put the file back, or run with --division open"
        )
    try:
        return Weights(load(content), digest)
    except SafetensorError as error:
        raise UserError(f"{path}: not a safetensors file ({error})") from error


def exported(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What generation needs of the state of a ``GalaxyVae``, in float32."""
    kept = {
        key: value.float().contiguous() for key, value in state.items() if key.startswith(PARTS)
    }
    if not kept:
        raise UserError("the checkpoint has no decoder and no flow; is it one of galaxy_vae?")
    return kept


def write(scale: str, state: Mapping[str, Tensor]) -> None:
    """Write the file of a scale from the state of a ``GalaxyVae``, and print its digest."""
    target = path_of(scale)
    target.parent.mkdir(exist_ok=True)
    content = save(exported(state), metadata={"made_by": "galaxy_vae"})
    atomic_write(target, content)
    print(f"{target}: {len(content) / 1e6:.1f} MB")
    print(f"weights_digest: {hashlib.sha256(content).hexdigest()}")


def main(argv: Sequence[str] | None = None) -> int:
    """Write the file and print its digest."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.galaxy_generation.weights")
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT")
    parser.add_argument("--scale", default="mini", choices=("mini", "full"))
    asked = parser.parse_args(argv)
    write(asked.scale, checkpoint.load(asked.checkpoint).get("model", {}))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        print(f"cepheid: {error}", file=sys.stderr)
        sys.exit(2)
