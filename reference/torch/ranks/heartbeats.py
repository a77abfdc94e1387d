"""Exchange heartbeats between the ranks, so that a stopped one can be named.

A rank that waits in a collective is inside a library and can tell nobody. Two threads do that: one
exchanges heartbeats through the store, and the other one looks at the clock, because the store
itself does not answer while the rank that keeps it is stopped.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from cepheid.reference.machine.placement import Placement, end_stuck_rank
from cepheid.reference.machine.ranks import TIMEOUT_VARIABLE, RankEndedError, RankTimeout


def name_ranks(ranks: Mapping[int, str]) -> str:
    """Name ranks and the machines they run on, as far as known; at most ten."""
    names = [f"{rank} ({host})" if host else str(rank) for rank, host in sorted(ranks.items())]
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return f"rank{'s' if len(names) > 1 else ''} {', '.join(names[:10])}{more}"


def print_message(text: str) -> None:
    """Print one message."""
    print(f"cepheid: {text}", file=sys.stderr, flush=True)


class Heartbeats:
    """The heartbeats of all ranks of a run, as this rank sees them."""

    def __init__(self, store: Any, place: Placement, timeout: RankTimeout) -> None:
        """Send the first heartbeat; ``store`` is a connection that nobody else uses."""
        self._store, self._place, self._timeout = store, place, timeout
        self._depth, self._entered, self._beats = 0, 0, 0
        self._since: float | None = None
        self._answered = self._looked = time.monotonic()
        self._pause = (0.0, 0.0)  # when this process last went on after a pause, and its seconds
        self._seen: dict[int, tuple[float, bytes]] = {}  # when the sign was new, and the sign
        self._ended = threading.Event()
        self._beat()

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Exchange heartbeats within the block."""
        threads = [
            threading.Thread(target=target, daemon=True)
            for target in (self._exchange, self._look_at_clock)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in threads:
                thread.join(timeout=1.0)  # a store that is stopped does not answer

    def enter(self) -> None:
        """Note that this rank begins to wait for the others."""
        self._depth += 1
        if self._depth == 1:
            self._entered += 1
            self._since = time.monotonic()

    def leave(self) -> None:
        """Note that it has ended to wait."""
        self._depth -= 1
        if self._depth == 0:
            self._since = None

    def find_awaited(self) -> dict[int, str]:
        """Return the ranks that send no heartbeat, else those that have not come so far."""
        return self._find_silent(self._timeout.notice_seconds / 3) or {
            rank: _read_host(sign)
            for rank, (_, sign) in dict(self._seen).items()
            if int(sign.split()[1]) < self._entered
        }

    def _find_silent(self, seconds: float) -> dict[int, str]:
        """Return the ranks that have sent no heartbeat for so long."""
        now = time.monotonic()
        if now - self._answered > max(seconds, self._timeout.notice_seconds / 2):  # of the store
            return {0: os.environ.get("MASTER_ADDR", "")}
        seen = dict(self._seen).items()
        return {rank: _read_host(sign) for rank, (when, sign) in seen if now - when > seconds}

    def raise_if_awaited(self) -> None:
        """Raise RankEndedError with the names of the ranks that did not come; else return.

        After a pause of this process itself, the others have given up, and it is the one to name.
        """
        self._note_pause()
        went_on, paused_seconds = self._pause
        if paused_seconds and time.monotonic() - went_on < self._timeout.notice_seconds:
            self._ended.set()
            raise RankEndedError(
                f"rank {self._place.rank} did not run for {paused_seconds:,.0f} s (it was stopped, "
                "or its machine was swapping), and meanwhile the other ranks ended. Run the same "
                f"command again, or let them wait longer ({TIMEOUT_VARIABLE})",
                is_reported=False,
            )
        awaited = self.find_awaited()
        if awaited and self._waited_seconds > self._timeout.notice_seconds:
            self._ended.set()
            raise RankEndedError(
                self._describe(awaited), is_reported=False, speaker=self._find_speaker(awaited)
            )

    def _describe(self, awaited: Mapping[int, str]) -> str:
        return (
            f"{name_ranks(awaited)} did not answer for {self._waited_seconds:,.0f} s: stopped, "
            "or on a machine that is swapping or gone. See what it does, or wait longer "
            f"({TIMEOUT_VARIABLE})"
        )

    @property
    def _waited_seconds(self) -> float:
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def _find_speaker(self, awaited: Mapping[int, str]) -> int:
        """Return the lowest rank that can speak for all."""
        return min(set(range(self._place.world_size)) - awaited.keys(), default=0)

    def _beat(self) -> None:
        self._beats += 1
        sign = f"{self._beats} {self._entered} {socket.gethostname()}"
        self._store.set(f"beat/{self._place.rank}", sign)

    def _exchange(self) -> None:
        others = [rank for rank in range(self._place.world_size) if rank != self._place.rank]
        keys = [f"beat/{rank}" for rank in others]
        with suppress(RuntimeError):  # the rank that kept the store is gone
            while not self._ended.wait(self._timeout.beat_seconds):
                self._beat()
                if self._waited_seconds < self._timeout.notice_seconds / 3:
                    self._seen.clear()
                else:
                    self._note(dict(zip(others, self._store.multi_get(keys), strict=True)))
                self._answered = time.monotonic()

    def _note(self, signs: Mapping[int, bytes]) -> None:
        now = time.monotonic()
        for rank, sign in signs.items():
            if rank not in self._seen or self._seen[rank][1] != sign:
                self._seen[rank] = now, sign

    def _note_pause(self) -> None:
        """Note that this process could not look at the clock for a while, if that is so.

        It has not heard the others meanwhile. If all were stopped, as by Slurm, they all go on.
        """
        before, now = self._looked, time.monotonic()
        self._looked = now
        if now - before > self._timeout.notice_seconds:
            self._pause = now, now - before
            self._seen.clear()
            self._answered = now
            self._since = self._since and now

    def _look_at_clock(self) -> None:
        told: dict[int, str] = {}
        while not self._ended.wait(self._timeout.beat_seconds):
            self._note_pause()
            if told and self._waited_seconds < self._timeout.notice_seconds:
                print_message(f"{name_ranks(told)}: back again")
                told = {}
            awaited = (
                self.find_awaited() if self._waited_seconds > self._timeout.notice_seconds else {}
            )
            if not awaited or self._place.rank != self._find_speaker(awaited):
                continue
            if not told:
                print_message(
                    f"waiting for {name_ranks(awaited)}, {self._waited_seconds:,.0f} s so far; "
                    f"{self._timeout}"
                )
                told = awaited
            if self._waited_seconds > self._timeout.seconds * 1.1 + 5:
                end_stuck_rank(self._describe(awaited))
            if self._timeout.silent_seconds < self._timeout.seconds and (
                stopped := self._find_silent(self._timeout.silent_seconds)
            ):
                end_stuck_rank(self._describe(stopped))


def _read_host(sign: bytes) -> str:
    return sign.decode().split(" ", 2)[2]
