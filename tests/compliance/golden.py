"""Golden files: what a command prints, word for word, kept in tests/golden."""

import os
from pathlib import Path

GOLDEN = Path(__file__).resolve().parent.parent / "golden"


def assert_golden(text: str, name: str) -> None:
    """Compare with a golden file; CEPHEID_UPDATE_GOLDEN=1 writes it anew, to be read as a diff."""
    path = GOLDEN / name
    if os.environ.get("CEPHEID_UPDATE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{name}: CEPHEID_UPDATE_GOLDEN=1 updates it"
