"""The file with the published weights of a scale, for any framework."""

import hashlib
from pathlib import Path

from cepheid.reference.run.config import RunConfig
from cepheid.rules import definition
from cepheid.rules.errors import UserError
from cepheid.rules.host import NO_WEIGHTS

FOLDER = definition.BENCHMARKS / "galaxy_generation" / "weights"  # also for a copy of this file
UNTRAINED = "untrained"  # in place of a digest


def find_path(scale: str) -> Path:
    """Return the path of the weights of a scale."""
    return FOLDER / f"{scale}.safetensors"


def find_published(config: RunConfig) -> tuple[Path, str | None]:
    """Return the file for a run and the digest that it must have; None in the open division."""
    expected = config.definition.model.get("weights_digest")
    return find_path(config.definition.scale), expected if config.division == "closed" else None


def read_file(path: Path, expected_digest: str | None) -> tuple[bytes, str]:
    """Return the content of a file and its SHA-256.

    Raises UserError where it is missing, or where its digest is not the expected one (None: any
    digest).
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        fix = (
            "train galaxy_vae, then write its weights with `python -m "
            f"cepheid.benchmarks.galaxy_generation.weights CHECKPOINT --scale {path.stem}`"
            if expected_digest is None
            else "fix: restore it, as with `git checkout`; the closed division has no others"
        )
        raise UserError(f"{path}: missing; {fix}{NO_WEIGHTS}") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    digest = hashlib.sha256(content).hexdigest()
    if expected_digest not in (None, digest):
        raise UserError(
            f"{path}: its SHA-256 is {digest[:12]}…, that of the definition's weights is "
            f"{str(expected_digest)[:12]}…; the closed division generates with those (rule T25): "
            "restore the file, or run with --division open"
        )
    return content, digest


def other_network(
    what: str, name: str, wanted: tuple[int, ...] | None, found: tuple[int, ...] | None
) -> UserError:
    """Return the error for weights of another network; None stands for a tensor that is missing."""
    has, needs = (f"shape {shape}" if shape else "none" for shape in (found, wanted))
    return UserError(
        f"{what}: these are weights of another network: of {name} they have {has}, expected "
        f"{needs}; fix: give those of the same scale"
    )
