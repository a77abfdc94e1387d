"""The frameworks in which tasks are written, and the import of a task: ours or a submitter's."""

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from cepheid.reference.run.generation import GenerationWorkload
from cepheid.rules.digests import find_unbound
from cepheid.rules.errors import UserError, did_you_mean

_WITHOUT_THE_NAME = re.compile(
    r"^\s*(?:from|import) (rules|reference|benchmarks|compliance|tools)(?=[. \n])", re.MULTILINE
)
_GONE = re.compile(
    r"^\s*(?:from|import) (cepheid\.reference\.torch\."
    r"(?:task|image_task|galaxies|(?:parallel|detection|translation)\.task))(?=[. \n])",
    re.MULTILINE,
)
SUBMITTED = "submitted"
"""The package name of a submitter's folder of code; in it ``from .model import …`` works."""


@dataclass(frozen=True)
class Framework:
    """The module of a benchmark's folder that holds the task, and the module that starts runs."""

    task: str
    backend: str


FRAMEWORKS: Mapping[str, Framework] = MappingProxyType(
    {
        "torch": Framework("task", "cepheid.reference.torch.backend"),
        "keras": Framework("keras_task", "cepheid.reference.keras.backend"),
    }
)


def find_framework(name: str) -> Framework:
    """Return the framework with this name. Raises UserError where there is none."""
    if name not in FRAMEWORKS:
        known = ", ".join(FRAMEWORKS)
        raise UserError(f'no framework "{name}"{did_you_mean(name, FRAMEWORKS)} (all: {known})')
    return FRAMEWORKS[name]


def import_backend(name: str) -> Any:
    """Import the module that starts runs on a framework. Raises UserError where there is none."""
    return importlib.import_module(find_framework(name).backend)


Create = Callable[[Any, Any], Any]
"""Makes the task of a configuration on some ranks."""


def find_create(source: Any) -> Create:
    """Return what makes a task of a module with ``WORKLOAD`` or ``create``, or of either itself."""
    create = source if callable(source) else getattr(source, "create", None)
    if create is not None:
        return create
    workload = getattr(source, "WORKLOAD", source)
    if isinstance(workload, GenerationWorkload):
        from cepheid.reference.run.task import GenerationTask  # needs numpy

        return partial(GenerationTask, workload)
    from cepheid.reference.torch.trainer import Trainer  # only a training on torch needs torch

    return partial(Trainer, workload)


def find_own_task(path: Path) -> Path:
    """Return the file of a submitter's own task, which ``path`` names or contains.

    Raises UserError where there is no such file.
    """
    file = path / "task.py" if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"--task {file}: no such file; `cepheid new-submission` writes one")
    if file.suffix != ".py" or not file.stem.isidentifier():
        raise UserError(f"--task {file}: expected a Python file, for example task.py")
    code = file.resolve()
    for path, why in find_unbound(code.parent):
        raise UserError(
            f"--task {file}: {path} is {why}; fix: remove it, so that only the code runs that the "
            "digest of the folder covers (rule S4)"
        )
    return code


def import_own_task(file: Path) -> Any:
    """Import a submitter's own task; its folder becomes a package of its own.

    Raises UserError where the module has neither ``create`` nor ``WORKLOAD``, or imports ours by
    their old names, and whatever its code raises.
    """
    _refuse_old_imports(file.parent)
    # Byte code beside the source would run next time, whatever the source says then.
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # for the processes of the task
    for name in [name for name in sys.modules if name.split(".")[0] == SUBMITTED]:
        del sys.modules[name]  # a task that was imported earlier
    package = ModuleType(SUBMITTED)
    package.__path__ = [str(file.parent)]
    sys.modules[SUBMITTED] = package
    module = importlib.import_module(f"{SUBMITTED}.{file.stem}")
    if not (callable(getattr(module, "create", None)) or hasattr(module, "WORKLOAD")):
        raise UserError(
            f"--task {file}: has no WORKLOAD (reference/torch/workload.py), and no function "
            "create(config, ranks) that returns the task (reference/run/train.py)"
        )
    return module


def _refuse_old_imports(folder: Path) -> None:
    """Raise UserError where code imports ``reference``, or a base class of tasks that is gone.

    In a checkout the import of ``reference`` and not ``cepheid.reference`` may succeed, and then
    each module exists twice.
    """
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        if match := _WITHOUT_THE_NAME.search(text):
            line = text.count("\n", 0, match.start(1)) + 1
            name = match[1]
            raise UserError(
                f"{path}:{line}: imports {name}, which is now cepheid.{name}; put `cepheid.` "
                "before it, here and in the other imports of Cepheid (rules/CHANGES.md)"
            )
        if match := _GONE.search(text):
            line = text.count("\n", 0, match.start(1)) + 1
            raise UserError(
                f"{path}:{line}: imports {match[1]}, whose base class of tasks is gone; fix: copy "
                "the benchmark's task.py again and vary its WORKLOAD (rules/CHANGES.md)"
            )
