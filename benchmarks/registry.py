"""The modules of the benchmarks by name: the listing of this folder is the registry."""

import importlib
import importlib.util
from typing import Any

from cepheid.reference.session.frameworks import find_framework
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError


def name_module(benchmark: str, module: str) -> str:
    """Return the name under which a module of a benchmark's folder is imported."""
    return f"cepheid.benchmarks.{benchmark}.{module}"


def import_module(benchmark: str, module: str) -> Any:
    """Import a module of a benchmark's folder, for example its ``plain``."""
    return importlib.import_module(name_module(benchmark, module))


def find_task_module(definition: Definition, framework: str) -> str:
    """Return the name of the module with the benchmark's task, without importing it.

    Raises UserError for a framework that the benchmark does not have.
    """
    task = find_framework(framework).task
    name = name_module(definition.name, task)
    if not importlib.util.find_spec(name):
        raise UserError(
            f"--framework {framework}: {definition.name} has no task for it "
            f"(benchmarks/{definition.name}/{task}.py is missing)"
        )
    return name


def import_task(definition: Definition, framework: str) -> Any:
    """Import the module with the benchmark's task for a framework.

    Raises UserError for a framework that the benchmark does not have.
    """
    return importlib.import_module(find_task_module(definition, framework))
