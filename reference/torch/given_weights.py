"""Training that starts from weights that somebody else has trained, as the definition says.

The file is one that ``torch.save`` wrote, as it is distributed, or one of safetensors; both are
read without running code.
"""

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from torch import Tensor, nn

from cepheid.reference.run.checkpoint import DAMAGED
from cepheid.reference.run.given_file import read_given_file
from cepheid.rules.errors import UserError

COUNTER = "num_batches_tracked"  # of torch's batch norms; nothing is computed from it
SAFETENSORS = ".safetensors"


def load_given_weights(
    module: nn.Module,
    path: Path,
    digest: str,
    own: str = "",
    rename: Callable[[str], str] = str,
) -> str:
    """Copy weights and statistics of the same names from a file into ``module``.

    Return the SHA-256 of the file. ``digest`` is how it begins, in hexadecimal. Tensors whose names
    begin with ``own`` stay as they are, if it is given. ``rename`` makes the module's names of
    those of the file. The file may hold more than the module has. Raises UserError where the file
    is missing, damaged or another one, or lacks something.
    """
    content, found_digest = read_given_file(path, digest)
    given = {rename(str(name)): value for name, value in _parse(path, content).items()}
    wanted = {
        name: value
        for name, value in module.state_dict().items()
        if COUNTER not in name and not (own and name.startswith(own))
    }
    for name, value in wanted.items():
        found = given.get(name)
        if not isinstance(found, Tensor) or found.shape != value.shape:
            has = tuple(found.shape) if isinstance(found, Tensor) else "nothing"
            raise UserError(
                f"{path}: expected a tensor of shape {tuple(value.shape)} as {name}, got {has}; "
                "fix: give the weights that the definition names"
            )
    module.load_state_dict({name: given[name] for name in wanted}, strict=False)
    return found_digest


def _parse(path: Path, content: bytes) -> Mapping[str, Any]:
    try:
        if path.suffix == SAFETENSORS:
            tensors: dict[str, Tensor] = load_safetensors(content)
            return tensors
        given = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (*DAMAGED, SafetensorError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"{path}: not a file of weights ({reason})") from error
    if not isinstance(given, Mapping):
        raise UserError(f"{path}: not a file of weights (expected a mapping)")
    return given
