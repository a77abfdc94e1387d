"""What many tests assert: what a text says, golden files, and what a command prints."""

import io
import os
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import TypeVar

import pytest

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
Patch = pytest.MonkeyPatch
Printed = pytest.CaptureFixture[str]
Value = TypeVar("Value")


def assert_golden(text: str, name: str) -> None:
    """Compare with a golden file; CEPHEID_UPDATE_GOLDEN=1 writes it anew, to be read as a diff."""
    path = GOLDEN / name
    if os.environ.get("CEPHEID_UPDATE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{name}: CEPHEID_UPDATE_GOLDEN=1 updates it"


def assert_says(text: str, *phrases: str) -> None:
    missing = [phrase for phrase in phrases if phrase not in text]
    assert not missing, f"{missing} not in {text}"


def require(value: Value | None) -> Value:
    """Assert that there is a value, and return it."""
    assert value is not None
    return value


def call_tool(main: Callable[[list[str]], int], line: list[str], code: int = 0) -> str:
    """Run a command in this process; assert its exit code, and return what it printed."""
    with redirect_stdout(io.StringIO()) as printed:
        assert main(line) == code
    return printed.getvalue()
