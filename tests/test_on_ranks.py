"""What the tests themselves use to call a function on several ranks."""

import os
import time

import pytest

from cepheid.measure.engine.own_process import find_free_port
from tests.distributed import on_ranks


def _fail_on_the_second() -> None:
    if os.environ["RANK"] == "1":
        raise ValueError("the second")
    time.sleep(100)  # as a rank that waits for the others


def test_a_rank_that_fails_is_reported_while_another_waits() -> None:
    with pytest.raises(AssertionError, match=r"rank 1:\n(.|\n)*ValueError: the second"):
        on_ranks(2, _fail_on_the_second)


def test_ranks_meet_at_a_port_that_systems_give_to_no_client() -> None:
    ports = {find_free_port() for _ in range(50)}
    assert len(ports) > 10
    assert max(ports) < 32_768
