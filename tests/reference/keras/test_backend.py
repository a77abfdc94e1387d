"""The choice of execution settings in Keras."""

import time
from collections.abc import Mapping

import pytest

from cepheid.reference.machine.ranks import SingleProcess
from cepheid.reference.run.execution import Execution
from tests.reference import Later, need_keras

need_keras()
BACKEND = "cepheid.reference.keras.backend"
backend = Later(BACKEND)

MILLISECONDS = {("bf16", "off"): 6, ("fp32", "off"): 12, ("bf16", "on"): 18, ("fp32", "on"): 24}
"""Of a step, by precision and ``compile``."""


def choose(
    milliseconds: Mapping[tuple[str, str], int], precision: str = "auto", compile_: str = "auto"
) -> Execution:
    def step(settings: Execution) -> str:
        time.sleep(milliseconds[settings.precision, settings.compile] / 1000)
        return ""

    # Beside an accelerator the time on the clock counts, that of a pause included.
    ranks = SingleProcess(backend.FRAMEWORK, accelerator="GPU")
    chosen: Execution = backend.autotune(Execution(precision, compile_), step, ranks)
    return chosen


@pytest.fixture
def in_two_ways() -> None:
    if len(backend.engine.WAYS) < 2:
        pytest.skip("there is one way only")


@pytest.mark.usefixtures("in_two_ways")
@pytest.mark.parametrize("fastest", MILLISECONDS)
def test_the_fastest_pair_of_precision_and_compiling_is_chosen(fastest: tuple[str, str]) -> None:
    chosen = choose({**MILLISECONDS, fastest: 1})
    assert (chosen.precision, chosen.compile) == fastest
    for setting, value in zip(("precision", "compile"), fastest, strict=True):
        assert chosen.because[setting].startswith("fastest step: ")
        assert f"{value} " in chosen.because[setting]


@pytest.mark.usefixtures("in_two_ways")
def test_requested_settings_are_kept() -> None:
    chosen = choose(MILLISECONDS, precision="fp32")
    assert (chosen.precision, chosen.compile) == ("fp32", "off")
    assert "precision" not in chosen.because
    chosen = choose(MILLISECONDS, compile_="on")
    assert (chosen.precision, chosen.compile) == ("bf16", "on")
    assert "compile" not in chosen.because
    chosen = choose(MILLISECONDS, precision="fp32", compile_="on")
    assert (chosen.precision, chosen.compile) == ("fp32", "on")
    assert not chosen.because


def test_other_work_takes_threads_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(f"{BACKEND}.usable_processors", lambda: 4)
    monkeypatch.setattr(f"{BACKEND}.measure_idle_processors", lambda: 3.9)
    assert backend._choose_threads() == (4, "")
    monkeypatch.setattr(f"{BACKEND}.measure_idle_processors", lambda: 1.6)
    assert backend._choose_threads() == (1, "other work runs here: 1.6 of 4 processors are idle")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert backend._choose_threads() == (3, "")
