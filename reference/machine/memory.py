"""The largest amount of memory that a process used, on the host and on its device."""

import re
import resource
from pathlib import Path

from cepheid.reference.machine.ranks import Ranks


def read_peak_resident_bytes() -> int:
    """Return the largest resident memory of this process, pages of mapped files included.

    On Linux the kernel's own figure (VmHWM) is read, which psutil does not have. ``ru_maxrss``
    would be wrong there: a process inherits the value of the process that started it.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        status = ""
    peak = re.search(r"^VmHWM:\s*(\d+) kB$", status, re.MULTILINE)
    kibibytes = int(peak.group(1)) if peak else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kibibytes * 1024


def read_peak_device_bytes(ranks: Ranks) -> int | None:
    """Return the most bytes that were allocated on this rank's device at once; None for a CPU."""
    if ranks.accelerator is None:
        return None
    if ranks.framework.startswith("keras"):
        from cepheid.reference.keras.backend import tf

        return int(tf.config.experimental.get_memory_info("GPU:0")["peak"])
    import torch

    return int(torch.cuda.max_memory_allocated())
