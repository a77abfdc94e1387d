"""How much memory a process took at most, on the host and on its device."""

import re
import resource
from pathlib import Path
from typing import Any


def peak_resident_bytes() -> int:
    """The largest resident memory of this process, pages of mapped files included.

    Of this process alone: where Linux tells it, ``ru_maxrss`` is not asked, because a process
    begins with that of the one which started it.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        status = ""
    told = re.search(r"^VmHWM:\s*(\d+) kB$", status, re.MULTILINE)
    kibibytes = int(told.group(1)) if told else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kibibytes * 1024


def peak_device_bytes(device: Any) -> int | None:
    """The most that torch had allocated on ``device`` at once; None for a CPU."""
    if device.type != "cuda":
        return None
    import torch

    return int(torch.cuda.max_memory_allocated(device))
