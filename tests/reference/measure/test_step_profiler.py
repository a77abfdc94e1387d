"""Where the time of a step goes."""

import time

import pytest

from reference.measure.step_profiler import Ledger


def test_a_phase_within_another_is_booked_once() -> None:
    waited = []
    ledger = Ledger(lambda: waited.append(1))
    started = time.perf_counter()
    with ledger("backward"):
        time.sleep(0.01)
        with ledger("factors"):
            time.sleep(0.03)
            with ledger("communication"):
                time.sleep(0.02)
        with ledger("factors"):
            time.sleep(0.01)
    total = time.perf_counter() - started
    assert len(waited) == 4
    assert sum(ledger.seconds.values()) == pytest.approx(total, abs=2e-3)
    assert ledger.seconds["factors"] >= 0.04
    assert ledger.seconds["communication"] >= 0.02
    assert 0.01 <= ledger.seconds["backward"] <= total - 0.06
    shares = ledger.shares(2 * total)
    assert shares["forward"] == 0
    assert shares["other"] == pytest.approx(0.5, abs=0.01)
