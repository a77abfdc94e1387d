"""Gather and add small tensors of ranks on one machine through memory that they share.

gloo hands each message to threads of its own. Where ranks compute on all cores, these wait for the
scheduler: 0.2 to 0.5 ms a message, and 4 ms whenever the kernel finds them a core that is in use.
A norm over ranks sends two messages of some kilobytes, and ResNet-50 has 53 norms.
"""

import fcntl
import mmap
import os
import platform
import secrets
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from cepheid.reference.machine.ranks import read_rank_timeout
from cepheid.reference.torch.ranks.collectives import all_gather, all_reduce, detect_lost_rank

FOLDER = Path("/dev/shm")
MOST_BYTES = 2**18  # of the values of one rank
MOST_RANKS = 8  # that add large tensors so: each reads what all have written
# Ranks write values, then a number that says so. Other processors may show the number first.
PROCESSORS = ("x86_64", "AMD64")
LINE_BYTES = 64  # of a cache line: each rank's number has its own
# A rank looks at the number all the time, then, because others need the core, after each nap.
SPIN_SECONDS = 0.0005
SHORT_NAP_SECONDS, LONG_NAP_SECONDS = 0.00005, 0.001
PATIENCE_SECONDS = 0.1  # of short naps
SECONDS_BETWEEN_LOOKS = 0.2  # at whether the awaited rank is still there

_boards: "WeakKeyDictionary[Any, Board | None]" = WeakKeyDictionary()


def gather(values: Tensor, group: Any = None) -> Tensor:
    """Return the ``values`` of all ranks, or those of ``group``, stacked by rank: (ranks, …).

    All ranks call it with the same shape and type. The fast way is for processors, at most
    ``MOST_BYTES``, and ranks on one machine; else ``all_gather`` sends messages.
    """
    board = _find_board(values, group)
    if board is None:
        return all_gather(values, group)
    return board.exchange(values).clone()


def gather_rows(rows: Sequence[Tensor], group: Any = None) -> Any:
    """Return the ``rows`` of all ranks, (channels,) each, as (ranks, rows, channels).

    All ranks call it with the same number, shape and type of rows. On processors the result is a
    NumPy array, because there an operation on a few numbers takes a fraction of the time of a
    tensor's; it lasts until the next call but one. On other devices it is a tensor.
    """
    board = None if len(rows) * rows[0].nbytes > MOST_BYTES else _find_board(rows[0], group)
    if board is None:
        gathered = all_gather(torch.stack(tuple(rows)), group)
        return gathered.numpy() if gathered.is_cpu else gathered
    return board.exchange_rows([row.numpy() for row in rows])


def add(values: Tensor, group: Any = None) -> Tensor:
    """Return the sum of ``values``, (…), over all ranks, or those of ``group``.

    All ranks call it with the same shape and type. It is fast where ``gather`` is.
    """
    board = _find_board(values, group)
    if board is None:
        return all_reduce(values.clone(), group)
    return board.exchange(values).sum(0)


def average_bucket(
    ranks: int,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # torch requires both annotations
) -> torch.futures.Future[Tensor]:
    """Average a bucket, (n,), over all ``ranks``: a communication hook of DDP."""
    gradients = bucket.buffer().div_(ranks)
    pieces = gradients.split(MOST_BYTES // gradients.element_size())
    if ranks > MOST_RANKS or _find_board(pieces[0], None) is None:
        all_reduce(gradients)
    else:
        for piece in pieces:
            piece.copy_(add(piece))
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(gradients)
    return done


def _find_board(values: Tensor, group: Any) -> "Board | None":
    """Return where the ranks exchange ``values``, or None for messages."""
    if not values.is_cpu or values.nbytes > MOST_BYTES:
        return None
    group = group or dist.group.WORLD
    try:
        return _boards[group]
    except KeyError:
        with detect_lost_rank():
            _boards[group] = _share_board(group)
    return _boards[group]


class Board:
    """Memory of several ranks, each of which writes its own part and reads all.

    A rank has two places for values and takes turns. It can be in turn n + 2 only when all have
    written in turn n + 1, so when all have read what it wrote in turn n.
    """

    def __init__(self, file: int, rank: int, ranks: int) -> None:
        """Map the open file, and keep it locked at ``rank`` for as long as this lives."""
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
        memory = mmap.mmap(file, count_bytes(ranks))
        self._file = os.fdopen(file, "r+b", buffering=0)
        self._rank, self._turn = rank, 0
        self._others = [other for other in range(ranks) if other != rank]
        self._turns = memoryview(memory)[: ranks * LINE_BYTES].cast("q")
        places = torch.frombuffer(memory, dtype=torch.uint8, offset=ranks * LINE_BYTES)
        self._places = places.view(2, ranks, MOST_BYTES)
        self._views: dict[tuple[torch.Size, torch.dtype], tuple[Tensor, ...]] = {}
        self._arrays: dict[tuple[int, int, np.dtype], np.ndarray] = {}
        self._seconds = read_rank_timeout().seconds

    def exchange(self, values: Tensor) -> Tensor:
        """Return the ``values`` of all ranks, (ranks, …), until the next exchange but one.

        Raises RankEndedError if a rank is lost.
        """
        key = values.shape, values.dtype
        if key not in self._views:
            places = self._places[:, :, : values.nbytes].view(values.dtype)
            self._views[key] = places.view(*places.shape[:2], *values.shape).unbind()
        self._turn += 1
        whole = self._views[key][self._turn % 2]
        whole[self._rank] = values
        self._wait_for_others()
        return whole

    def exchange_rows(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        """Return the ``rows`` of all ranks, (n,) each, as (ranks, rows, n), for as long."""
        key = len(rows), len(rows[0]), rows[0].dtype
        if key not in self._arrays:
            places = self._places.numpy()[:, :, : len(rows) * rows[0].nbytes].view(rows[0].dtype)
            self._arrays[key] = places.reshape(*places.shape[:2], *key[:2])
        self._turn += 1
        whole: np.ndarray = self._arrays[key][self._turn % 2]
        for place, row in zip(whole[self._rank], rows, strict=True):
            place[:] = row
        self._wait_for_others()
        return whole

    def _wait_for_others(self) -> None:
        """Tell the others that this rank has written, and wait until they have."""
        self._turns[self._rank * LINE_BYTES // 8] = self._turn
        for other in self._others:
            self._wait_for(other)

    def _wait_for(self, rank: int) -> None:
        place = rank * LINE_BYTES // 8
        if self._turns[place] >= self._turn:
            return
        start = time.monotonic()
        while self._turns[place] < self._turn:
            if time.monotonic() - start > SPIN_SECONDS:  # the core and Python's lock to others
                with detect_lost_rank():
                    self._nap_until_written(rank, place, start)

    def _nap_until_written(self, rank: int, place: int, start: float) -> None:
        looked = now = time.monotonic()
        while self._turns[place] < self._turn:
            time.sleep(SHORT_NAP_SECONDS if now - start < PATIENCE_SECONDS else LONG_NAP_SECONDS)
            if now - looked > SECONDS_BETWEEN_LOOKS:
                looked = now
                self._look_after(rank, now - start)
            now = time.monotonic()

    def _look_after(self, rank: int, seconds: float) -> None:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
        except OSError:  # locked: that process lives
            if seconds < self._seconds:
                return
            raise RuntimeError(f"timed out: rank {rank} of the group did not answer") from None
        raise RuntimeError(f"connection lost: rank {rank} of the group has ended")


def count_bytes(ranks: int) -> int:
    """Return the size of a board."""
    return ranks * (LINE_BYTES + 2 * MOST_BYTES)


def _share_board(group: Any) -> Board | None:
    """Return the board of the ranks of ``group``; None where they have no memory in common.

    The first rank makes a file and the others open it. It has no name any more when this returns.
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    word = secrets.token_bytes(LINE_BYTES // 2)
    file, path = _make_file(ranks, word) if rank == 0 else (-1, "")
    offers: list[Any] = [None] * ranks
    dist.all_gather_object(offers, (path, word), group=group)
    path, word = offers[0]
    try:
        if rank > 0 and path:
            file = _open_file(path, word)
        if file >= 0:  # before others look at whether this rank lives
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
        answers: list[Any] = [None] * ranks
        dist.all_gather_object(answers, file >= 0, group=group)
    finally:
        if rank == 0 and path:
            os.unlink(path)
    if all(answers):
        return Board(file, rank, ranks)
    if file >= 0:
        os.close(file)
    return None


def _make_file(ranks: int, word: bytes) -> tuple[int, str]:
    """Return a new file with ``word`` behind the boards, open, and its path; (-1, "") if none."""
    if platform.machine() not in PROCESSORS or not FOLDER.is_dir():
        return -1, ""
    try:
        file, path = tempfile.mkstemp(prefix="cepheid-", dir=FOLDER)
    except OSError:
        return -1, ""
    try:
        os.posix_fallocate(file, 0, count_bytes(ranks) + len(word))  # else a write could fail
        os.pwrite(file, word, count_bytes(ranks))
    except OSError:
        os.close(file)
        os.unlink(path)
        return -1, ""
    return file, path


def _open_file(path: str, word: bytes) -> int:
    """Return the file of the first rank, open; -1 if there is none here, or not that one."""
    try:
        file = os.open(path, os.O_RDWR)
    except OSError:
        return -1
    if os.pread(file, len(word), os.fstat(file).st_size - len(word)) == word:
        return file
    os.close(file)
    return -1
