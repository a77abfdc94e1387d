"""Real definitions made tiny: a folder of them takes the place of ``benchmarks/`` in a test.

The code of the benchmarks is the real one, and so is everything that these definitions leave as it
is. A command that a test starts reads them too, because an environment variable names the folder.
"""

import hashlib
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from cepheid.rules import definition
from cepheid.rules.definition import BENCHMARKS, BENCHMARKS_VARIABLE, Definition

SIZES = {"train_samples": 64, "evaluation_samples": 32}
TIMING = {"eval_every_samples": 32, "max_samples": 64}


def write(
    folder: Path,
    name: str,
    scale: str = "mini",
    *,
    reachable: bool | None = None,
    keep: Iterable[str] = (),
    **changes: Any,
) -> Path:
    """Write ``folder/name/benchmark.yaml``, the real definition at one scale with ``changes``.

    A mapping is merged into the real one, ``None`` leaves a key out. ``reachable`` replaces the
    targets by ones that every quality reaches, or none does. ``keep`` names files that lie beside
    the real definition and are copied. Returns ``folder``.
    """
    document = yaml.safe_load((BENCHMARKS / name / "benchmark.yaml").read_text(encoding="utf-8"))
    facts = document["scales"][scale]
    document["scales"] = {scale: facts}
    if reachable is not None:
        facts["targets"] = {
            quality["metric"]: 1e9 if (quality["better"] == "lower") == reachable else -1e9
            for quality in document["quality"]
        }
    for key, value in changes.items():
        if value is None:
            document.pop(key, None)
            facts.pop(key, None)
        elif isinstance(value, Mapping):
            merged = {**facts.get(key, {}), **value}
            facts[key] = {name: entry for name, entry in merged.items() if entry is not None}
        else:
            facts[key] = value
    path = folder / name / "benchmark.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    for file in keep:
        (folder / name / file).write_bytes((BENCHMARKS / name / file).read_bytes())
    return folder


@cache
def _root() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="cepheid-benchmarks-")


def folder_of(name: str, **changes: Any) -> Path:
    """Return a folder with what ``write`` makes of these arguments, for the whole session."""
    digest = hashlib.sha256(repr((name, changes)).encode()).hexdigest()[:16]
    folder = Path(_root().name) / digest
    return folder if folder.exists() else write(folder, name, **changes)


def use(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process and those that it starts read the definitions of ``folder``."""
    monkeypatch.setenv(BENCHMARKS_VARIABLE, str(folder))


def install(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    scale: str = "mini",
    **changes: Any,
) -> Definition:
    """Make the benchmark that ``write`` makes of these arguments the only one; return it."""
    use(write(folder, name, scale, **changes), monkeypatch)
    return definition.load(name, scale)
