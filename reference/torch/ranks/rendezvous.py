"""The rendezvous of the ranks: each one enters itself in a store, and waits for all others."""

import os
import threading
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from cepheid.reference.machine.placement import Placement, decode_seat, find_seat, seat_rank
from cepheid.reference.machine.ranks import RankEndedError, RankTimeout
from cepheid.reference.torch.ranks.choice import list_accelerators
from cepheid.reference.torch.ranks.heartbeats import name_ranks, print_message
from cepheid.rules.errors import UserError

POLL_SECONDS = 0.02
READING_SECONDS = 10.0  # for the other ranks, of an error that all have


def wait_for_ranks(place: Placement, timeout: RankTimeout) -> Any:
    """Return the store of the ranks after all have come.

    Raises UserError on the first rank with the names of those that did not come in time, and
    RankEndedError on the others; ``dist.DistError`` where the place cannot be reached.
    """
    seat = find_seat(place, tuple(device.identity for device in list_accelerators()))
    store = _connect(place, timeout)
    store.set(f"here/{place.rank}", seat.encode())
    store.add("here", 1)
    began = time.monotonic()
    has_told = False
    try:
        while store.add("here", 0) < place.world_size:
            waited = time.monotonic() - began
            if place.rank == 0 and waited > timeout.notice_seconds and not has_told:
                absent = _find_absent(store, place.world_size)
                print_message(
                    f"waiting for {absent} of {place.world_size}, {waited:,.0f} s; {timeout}"
                )
                has_told = True
            if waited > timeout.seconds + (0 if place.rank == 0 else timeout.notice_seconds):
                raise UserError(
                    f"{_find_absent(store, place.world_size)} of {place.world_size} did not come "
                    f"within {timeout.seconds:,.0f} s: start all ranks, with the same MASTER_ADDR "
                    "and MASTER_PORT"
                )
            time.sleep(POLL_SECONDS)
    except dist.DistError as error:
        raise RankEndedError("the first rank gave up", is_reported=True) from error
    return store


def seat(place: Placement, store: Any) -> Placement:
    """Return ``place`` with its local rank and the ranks on its node; all ranks have come.

    Raises UserError on the first rank where the places contradict each other, and RankEndedError on
    the others.
    """
    try:
        seats = store.multi_get([f"here/{rank}" for rank in range(place.world_size)])
        store.add("seated", 1)
        return seat_rank(place, [decode_seat(content) for content in seats])
    except (UserError, dist.DistError) as error:
        if place.rank == 0:
            _wait_for_readers(store, place.world_size)
            raise
        raise RankEndedError("the first rank gave up", is_reported=True) from error


def _wait_for_readers(store: Any, readers: int) -> None:
    """Wait until all ranks have read the seats from the store, which ends with the first rank."""
    deadline = time.monotonic() + READING_SECONDS
    while time.monotonic() < deadline and store.add("seated", 0) < readers:
        time.sleep(POLL_SECONDS)


def _connect(place: Placement, timeout: RankTimeout) -> Any:
    """Connect to the store, which the first rank keeps, or the agent of torchrun."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    keeps_store = place.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    notice = threading.Timer(
        timeout.notice_seconds, print_message, [f"waiting for rank 0 at {host}:{port}; {timeout}"]
    )
    notice.daemon = True
    if place.likely_local_rank <= 1:  # two on each machine: the first one may be the missing one
        notice.start()
    try:
        return TCPStore(
            host,
            port,
            place.world_size,
            keeps_store,
            timeout=timedelta(seconds=timeout.seconds),
            wait_for_workers=False,
            multi_tenant=True,
        )
    finally:
        notice.cancel()


def _find_absent(store: Any, world_size: int) -> str:
    ranks = range(world_size)
    return name_ranks({rank: "" for rank in ranks if not store.check([f"here/{rank}"])})
