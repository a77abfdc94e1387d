"""torch.compile with a fall-back that says why."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra torch")

from cepheid.reference.torch.compilation import Compiled
from cepheid.rules.errors import UserError


def double(values: Any) -> Any:
    return values * 2


def failing_compile(function: object, **options: object) -> object:
    def raise_failure(*arguments: object) -> None:
        raise RuntimeError("InvalidCxxCompiler: no C++ compiler found\nmore lines")

    return raise_failure


def test_falls_back_to_eager_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", failing_compile)
    function = Compiled(double, enabled=True, insist=False)
    assert function(torch.ones(1)).item() == 2
    assert function(torch.ones(1)).item() == 2
    assert function.note == "eager"
    assert function.failure == "InvalidCxxCompiler: no C++ compiler found"


def test_who_insists_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", failing_compile)
    with pytest.raises(UserError, match=r"no C\+\+ compiler found.*compile=off"):
        Compiled(double, enabled=True, insist=True)(torch.ones(1))


def test_a_bug_in_the_function_is_not_taken_for_a_missing_compiler() -> None:
    def broken(values: Any) -> Any:
        return values @ torch.ones(7, 7)

    with pytest.raises(RuntimeError, match=r"mat1 and mat2|size mismatch"):
        Compiled(broken, enabled=True, insist=False)(torch.ones(2, 3))


def test_off_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", failing_compile)
    function = Compiled(double, enabled=False, insist=True)
    assert function(torch.ones(1)).item() == 2
    assert function.note == "eager"
