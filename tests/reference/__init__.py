"""Modules that take seconds to load: the worker that tests them loads them, and no other one."""

import importlib
from importlib.util import find_spec
from typing import Any

import pytest

from cepheid.rules.host import find_backend


class Later:
    """A module that is imported when one of its names is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("__", "_pytest", "_mock")):  # asked for while tests are collected
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)


def need(*packages: str) -> None:
    """Skip the test module that calls this where a package is missing."""
    for package in packages:
        if not find_spec(package):
            pytest.skip(f"needs {package}, which comes with an extra", allow_module_level=True)


def need_keras(*packages: str) -> None:
    """Skip the test module that calls this where Keras, its backend or a package is missing."""
    need("keras", find_backend(), *packages)
