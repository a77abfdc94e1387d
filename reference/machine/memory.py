"""The largest amount of memory that a process used on the host."""

import re
import resource
from pathlib import Path


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
