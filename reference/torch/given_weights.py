"""Training that starts from weights that somebody else has trained, as the definition says.

The file is one that ``torch.save`` wrote, as it is distributed; it is read without running code.
"""

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from reference.run.checkpoint import DAMAGED
from rules.errors import UserError

COUNTER = "num_batches_tracked"  # of torch's batch norms; nothing is computed from it


def load_given_weights(module: nn.Module, path: Path, digest: str) -> None:
    """Copy weights and statistics of the same names from a file into ``module``.

    ``digest`` is how the SHA-256 of the file begins, in hexadecimal. The file may hold more than
    the module has. Raises UserError where the file is missing, damaged or another one, or lacks
    something.
    """
    given = _read(path, digest)
    wanted = {name: value for name, value in module.state_dict().items() if COUNTER not in name}
    for name, value in wanted.items():
        found = given.get(name)
        if not isinstance(found, Tensor) or found.shape != value.shape:
            has = tuple(found.shape) if isinstance(found, Tensor) else "nothing"
            raise UserError(
                f"{path}: expected a tensor of shape {tuple(value.shape)} as {name}, got {has}; "
                "fix: give the weights that the definition names"
            )
    module.load_state_dict({name: given[name] for name in wanted}, strict=False)


def _read(path: Path, digest: str) -> Mapping[str, Any]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"{path}: the training starts from these weights, and they cannot be read "
            f"({error.strerror}); fix: put the file there"
        ) from error
    found = hashlib.sha256(content).hexdigest()
    if not found.startswith(digest):
        raise UserError(
            f"{path}: its SHA-256 begins with {found[: len(digest)]}, expected {digest}; "
            "fix: put the file there that the definition names"
        )
    try:
        given = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except DAMAGED as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"{path}: not a file of weights ({reason})") from error
    if not isinstance(given, Mapping):
        raise UserError(f"{path}: not a file of weights (expected a mapping)")
    return given
