"""The accelerator of a rank: which one it is, how its ranks speak, and how the host waits for it.

CUDA and ROCm are ``cuda`` to torch. Everything else is a processor.
"""

import os
from functools import lru_cache

import torch
from torch import Tensor

from cepheid.rules.errors import UserError

VARIABLE = "CEPHEID_DEVICE"
KINDS = ("cpu", "cuda")


def choose_device(local_rank: int = 0) -> torch.device:
    """Return the device of the rank with this number on its node; it becomes torch's current one.

    Ranks take accelerators in turn. Whether two of them would take the same one, all ranks of a
    node find out together: each may see one accelerator only, and another one. Raises UserError
    as ``count_accelerators``.
    """
    count = count_accelerators()
    if not count:
        return torch.device("cpu")
    device = torch.device("cuda", local_rank % count)
    torch.cuda.set_device(device)
    return device


def count_accelerators() -> int:
    """Return how many accelerators this process may use; none where CEPHEID_DEVICE is cpu.

    Raises UserError where it asks for what this process has not.
    """
    asked = os.environ.get(VARIABLE, "")
    if asked and asked not in KINDS:
        raise UserError(f"{VARIABLE}={asked}: expected {' or '.join(KINDS)}, or unset")
    count = 0 if asked == "cpu" or not torch.cuda.is_available() else torch.cuda.device_count()
    if asked == "cuda" and not count:
        raise UserError(
            f"{VARIABLE}=cuda, but torch {torch.__version__} can use no GPU here; fix: install a "
            f"build of torch for this GPU and its driver, or set {VARIABLE}=cpu"
        )
    return count


def identify_accelerators() -> tuple[str, ...]:
    """Return what tells each accelerator of this process from all others, also of other machines.

    Raises UserError as ``count_accelerators``.
    """
    places = range(count_accelerators())
    return tuple(str(torch.cuda.get_device_properties(place).uuid) for place in places)


def name_backend(device: torch.device) -> str:
    """Return the backend of ``torch.distributed`` through which ranks on such devices speak."""
    return "nccl" if device.type == "cuda" else "gloo"


def name_kind(device: torch.device) -> str:
    """Return cpu or accelerator: by this, and not by a vendor, sizes of work are chosen."""
    return "cpu" if device.type == "cpu" else "accelerator"


def make_constant(
    values: tuple[float, ...], device: torch.device, dtype: torch.dtype | None = None
) -> Tensor:
    """Return ``values``, (n,), on ``device``, to be read only.

    They are copied there once: the host waits for such a copy, which no step should.
    """
    if torch.compiler.is_compiling():  # it makes a constant of its own
        return torch.tensor(values, dtype=dtype, device=device)
    return _keep_constant(values, device, dtype)


@lru_cache(maxsize=256)
def _keep_constant(
    values: tuple[float, ...], device: torch.device, dtype: torch.dtype | None
) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device)


def synchronize(device: torch.device) -> None:
    """Wait until ``device`` has computed what it was given; a processor always has."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None and device.type == accelerator.type:
        torch.accelerator.synchronize(device)
