"""Tensors that may be larger than the memory: they lie in a file, and pages come as needed."""

import math
import shutil
import tempfile
from collections.abc import Sequence

import psutil
import torch
from torch import Tensor

from cepheid.rules.errors import UserError

IN_MEMORY_MAX = 0.5  # of what is free; the rest is for what a step computes


def allocate(shape: Sequence[int], device: torch.device) -> Tensor:
    """Return zeros of ``shape``, (n, …), float32, on ``device``.

    On the CPU they lie in a file without a name, in the folder for temporary files (``TMPDIR``),
    where they would take more than half of the memory that is free. Raises UserError where that
    folder has too little space.
    """
    wanted = 4 * math.prod(shape)
    if device.type != "cpu" or wanted <= IN_MEMORY_MAX * psutil.virtual_memory().available:
        return torch.zeros(shape, device=device)
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if wanted > free:
        raise UserError(
            f"{folder}: has {free / 2**30:.1f} GiB free, but {wanted / 2**30:.1f} GiB that do not "
            "fit into memory must lie there; fix: set TMPDIR to a folder on a larger disk"
        )
    with tempfile.NamedTemporaryFile(prefix="cepheid-") as file:  # its pages outlive its name
        return torch.from_file(file.name, shared=True, size=math.prod(shape)).view(*shape)
