"""Studies look for other work on the machine for two seconds each; their tests do not wait."""

import psutil
import pytest


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = psutil.cpu_times_percent
    monkeypatch.setattr(psutil, "cpu_times_percent", lambda seconds: usual())
