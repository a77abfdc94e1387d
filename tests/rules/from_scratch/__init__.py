"""Networks that are written from the text of rules/from_scratch.md, in plain PyTorch."""

import pytest

pytest.importorskip("torch", reason="needs the extra torch")
