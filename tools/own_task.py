"""A submitter's own task, ``cepheid run --task FILE``: found and loaded."""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from rules.errors import UserError

PACKAGE = "submitted"
"""The name under which the folder of the task is imported; in it ``from .model import …`` works."""


def found(task: Path) -> Path:
    """The file of a task. Raises UserError where ``task`` is none."""
    if task.is_dir():
        task = task / "task.py"
    if not task.is_file():
        raise UserError(f"--task {task}: no such file; `cepheid new-submission` writes one")
    if task.suffix != ".py" or not task.stem.isidentifier():
        raise UserError(f"--task {task}: expected a Python file, for example task.py")
    return task.resolve()


def load(task: Path) -> Any:
    """The module of a task, whose folder is a package of its own. Raises UserError where it lacks
    ``create``; what the code itself raises is its own."""
    for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
        del sys.modules[name]  # another task's
    package = ModuleType(PACKAGE)
    package.__path__ = [str(task.parent)]
    sys.modules[PACKAGE] = package
    module = importlib.import_module(f"{PACKAGE}.{task.stem}")
    if not callable(getattr(module, "create", None)):
        raise UserError(
            f"--task {task}: no function create(config, ranks), which returns the task; "
            "reference/run/train.py says what that is"
        )
    return module
