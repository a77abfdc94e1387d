"""Running a function on several gloo ranks in the tests, with every exit code checked."""

import os
import pickle
import time
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any
from unittest.mock import patch

from cepheid.measure.engine.own_process import find_free_port
from cepheid.reference.machine.placement import end_rank
from tests.processes import take_place, warm_context

JOIN_SECONDS = 180


_FIND_BOARD = "cepheid.reference.torch.ranks.shared_memory._find_board"
send_messages = partial(patch, _FIND_BOARD, return_value=None)
"""Let ranks send messages in the context, as between machines. All ranks call it."""


def on_ranks(world_size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Call ``function(*arguments)`` on each of ``world_size`` processes that form a gloo group.

    They are forked for this call, so that nothing of an earlier one is left in them, and compute on
    one thread each. Returns the results by rank. Fails with the rank's own traceback where a rank
    raises, and says so where one hangs or dies.
    """
    context = warm_context()
    deadline = time.monotonic() + JOIN_SECONDS
    port = find_free_port()
    ranks = []
    for rank in range(world_size):
        receiving, sending = context.Pipe(duplex=False)
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        process = context.Process(
            target=_run_rank,
            args=({**os.environ, **place}, os.getcwd(), sending, function, arguments),
        )
        process.start()
        sending.close()
        ranks.append((process, receiving))
    results: dict[int, Any] = {}
    try:
        waiting = {receiving: rank for rank, (_, receiving) in enumerate(ranks)}
        while waiting:
            ready = wait(list(waiting), max(0, deadline - time.monotonic()))
            assert ready, f"ranks {', '.join(map(str, waiting.values()))} hang"
            for receiving in [each for each in waiting if each in ready]:
                rank = waiting.pop(receiving)
                try:
                    raised, results[rank] = pickle.loads(receiving.recv_bytes())
                except EOFError:
                    process = ranks[rank][0]
                    process.join(JOIN_SECONDS)
                    code = process.exitcode
                    raise AssertionError(f"rank {rank} died, exit code {code}") from None
                assert not raised, f"rank {rank}:\n{results[rank]}"
        for rank, (process, _) in enumerate(ranks):
            process.join(JOIN_SECONDS)
            assert process.exitcode == 0, f"rank {rank}: exit code {process.exitcode}"
    finally:
        for process, _ in ranks:
            process.kill()
            process.join()
    return [results[rank] for rank in range(world_size)]


def _run_rank(
    environment: dict[str, str],
    folder: str,
    sending: Connection,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    take_place(environment, folder)
    try:
        _send(sending, False, function(*arguments))
    except BaseException:
        _send(sending, True, traceback.format_exc())
        raise
    finally:
        sending.close()
    end_rank(0)


def _send(sending: Connection, has_raised: bool, result: Any) -> None:
    """Send a copy: the memory of a tensor that is sent as such is gone with its process."""
    sending.send_bytes(pickle.dumps((has_raised, result)))
