"""How processes that compute on TensorFlow meet: each must know the addresses of all.

TF_CONFIG has them, where it gives this process the same place as the launcher does. Else each
process tells the first one where it will listen, and gets the addresses of all. JAX needs none of
this: there one process coordinates.
"""

import json
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO

from cepheid.reference.machine.launchers import read_tf_config
from cepheid.reference.machine.placement import Placement
from cepheid.reference.machine.ranks import RankTimeout, read_rank_timeout
from cepheid.rules.errors import UserError

LONGEST_GREETING = 200  # bytes
PAUSE_SECONDS = 0.2


@contextmanager
def quiet_libraries() -> Iterator[IO[str]]:
    """Show what C++ libraries write to stderr only if the block fails; yield the stderr of before.

    TensorFlow reports as it is loaded that it uses oneDNN, whatever its log level, and so do its
    servers.
    """
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile("w+", errors="replace") as kept:
        os.dup2(kept.fileno(), 2)
        try:
            with open(stderr, "w", closefd=False) as shown:
                yield shown
        except BaseException:
            os.dup2(stderr, 2)
            kept.seek(0)
            shutil.copyfileobj(kept, sys.stderr)
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


def find_addresses(place: Placement, host: str, port: int) -> Sequence[str]:
    """Return where each process listens, ``host:port``, by rank.

    Without TF_CONFIG the first one listens at ``host`` and ``port`` until all have come. Raises
    UserError where some do not.
    """
    told = read_tf_config(os.environ)
    if told and (told.rank, len(told.addresses)) == (place.rank, place.world_size):
        return told.addresses
    meet = _welcome if place.rank == 0 else _greet
    with socket.socket() as reserved:
        reserved.bind(("", 0))
        own: int = reserved.getsockname()[1]
        return meet(place, (host, port), own, Patience(read_rank_timeout()))


def find_local_rank(place: Placement, addresses: Sequence[str]) -> int:
    """Return the rank among those of this machine, by the launcher or else by the addresses."""
    if place.local_rank is not None:
        return place.local_rank
    hosts = [address.rpartition(":")[0] for address in addresses]
    return hosts[: place.rank].count(hosts[place.rank])


class Patience:
    """Waits in short pauses, says once for whom, and ends with an error when time is over."""

    def __init__(self, timeout: RankTimeout) -> None:
        self.timeout, self.began, self.has_told = timeout, time.monotonic(), False

    def wait(self, whom: str, seconds: float = PAUSE_SECONDS) -> None:
        """Wait a little. Raises UserError when it has lasted too long."""
        waited = time.monotonic() - self.began
        if waited > self.timeout.seconds:
            raise UserError(
                f"{whom} did not come within {self.timeout.seconds:,.0f} s: start all ranks, with "
                "the same MASTER_ADDR and MASTER_PORT, or the same cluster in TF_CONFIG"
            )
        if waited > self.timeout.notice_seconds and not self.has_told:
            self.has_told = True
            print(f"cepheid: waiting for {whom}; {self.timeout}", file=sys.stderr, flush=True)
        time.sleep(seconds)


def _greet(
    place: Placement, meeting: tuple[str, int], own: int, patience: Patience
) -> Sequence[str]:
    """Tell the first process where this one will listen; return the addresses of all."""
    while True:
        try:
            with socket.create_connection(
                meeting, timeout=patience.timeout.notice_seconds
            ) as first:
                first.settimeout(patience.timeout.seconds)
                first.sendall(json.dumps([place.rank, own]).encode() + b"\n")
                with first.makefile() as answer:
                    return [str(each) for each in json.loads(answer.read())]
        except (OSError, ValueError):  # it does not listen yet, or has ended
            patience.wait(f"rank 0 at {meeting[0]}:{meeting[1]}")


def _welcome(
    place: Placement, meeting: tuple[str, int], own: int, patience: Patience
) -> Sequence[str]:
    """Hear where the other processes will listen, and tell all of them."""
    host, port = meeting
    found, guests = {0: _format(host, own)}, dict[int, socket.socket]()
    with ExitStack() as stack:
        try:
            server = stack.enter_context(socket.create_server(("", port)))
        except OSError as error:
            raise UserError(
                f"rank 0 cannot listen on port {port} ({error.strerror}); fix: export another "
                "MASTER_PORT; ranks meet on the port that follows it"
            ) from error
        server.setblocking(False)
        while len(found) < place.world_size:
            absent = [rank for rank in range(place.world_size) if rank not in found]
            try:
                one, (peer, _) = server.accept()
            except BlockingIOError:
                names = ", ".join(map(str, absent[:10]))
                patience.wait(f"ranks {names} of {place.world_size}", 0.01)
                continue
            stack.enter_context(one)
            one.settimeout(patience.timeout.notice_seconds)
            try:
                with one.makefile() as words:
                    rank, other = json.loads(words.readline(LONGEST_GREETING))
                found[absent[absent.index(rank)]] = _format(peer, int(other))
                guests[rank] = one
            except (OSError, ValueError, TypeError):  # somebody else
                one.close()
        addresses = [found[rank] for rank in range(place.world_size)]
        for guest in guests.values():
            guest.sendall(json.dumps(addresses).encode())
    return addresses


def _format(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
