"""Cepheid: a benchmark suite for deep learning with rules, reference and compliance tools.

In a checkout each room is a symbolic link to the folder beside this one, in an installation a
folder. What programs use (docs/python.md) is imported when it is first used.
"""

import importlib
import sys
from pathlib import Path

if not (Path(__file__).parent / "rules").is_dir():
    print(
        "cepheid: this checkout has no symbolic links, so the rooms under cepheid/ are missing; "
        "`git config core.symlinks true && git checkout -- cepheid` makes them, "
        "and an installed Cepheid needs none",
        file=sys.stderr,
    )
    raise SystemExit(2)

__all__ = ["datasets", "logs", "models", "read_log", "results"]  # types: __init__.pyi


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'cepheid' has no attribute {name!r}")
    in_logs = name in ("read_log", "results")
    module = importlib.import_module(f"cepheid.{'logs' if in_logs else name}")
    return getattr(module, name) if in_logs else module
