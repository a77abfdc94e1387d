"""Batches are read while the device computes, and are those that would be read in their turn."""

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra torch")

from cepheid.reference.data.sentences.batches import PADDING
from cepheid.reference.torch.devices.feeding import PiecesAhead
from cepheid.reference.torch.devices.kinds import Processor
from cepheid.reference.torch.pieces import Piece, Pieces, PiecesToRead
from cepheid.reference.torch.trainer import Trainer
from cepheid.rules import definition
from tests import tasks

STEP, SIZE, PATIENCE = 8, 2, 60.0
TRAINING = [name for name in definition.names() if definition.load(name, "mini").kind == "train"]
CPU = Processor(torch.device("cpu"))


@dataclass
class Source:
    """Batches of the numbers of samples; tells which are read, and by which thread."""

    fails_at: int = -1
    read: list[int] = field(default_factory=list)
    threads: set[str] = field(default_factory=set)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def take(self, samples: int, size: int) -> Pieces:
        """Return a piece of this size."""
        with self.changed:
            self.read.append(samples)
            self.threads.add(threading.current_thread().name)
            self.changed.notify_all()
        if samples == self.fails_at:
            self.fails_at = -1
            raise OSError("the disk is gone")
        return [Piece(torch.full((size,), samples), torch.zeros(size))]

    def wait_for(self, samples: int) -> bool:
        """Return whether a batch is read before long."""
        with self.changed:
            return self.changed.wait_for(lambda: samples in self.read, PATIENCE)


def first_of(pieces: Pieces) -> int:
    """Return the samples of a batch."""
    return int(next(iter(pieces)).inputs[0])


def test_the_next_batch_is_read_while_one_is_used() -> None:
    """Nobody asks for it: the step that computes the first one waits until it is there."""
    source = Source()
    ahead = PiecesAhead(CPU, source.take, STEP)
    assert first_of(ahead.take(0, SIZE)) == 0
    assert source.wait_for(STEP)
    assert first_of(ahead.take(STEP, SIZE)) == STEP
    assert source.wait_for(3 * STEP)
    assert threading.current_thread().name not in source.threads
    assert source.read == sorted(set(source.read)), "in turn, and once each"


def test_a_step_may_ask_twice_and_a_resumed_run_or_other_sizes_begin_anew() -> None:
    ahead = PiecesAhead(CPU, Source().take, STEP)
    assert ahead.take(0, SIZE) is ahead.take(0, SIZE)
    for samples in (STEP, 800, 808, 0, STEP):
        assert first_of(ahead.take(samples, SIZE)) == samples
    ahead = PiecesAhead(CPU, Source().take, STEP)
    for samples, size in ((0, 4), (0, 2), (STEP, 2), (2 * STEP, 1)):
        (piece,) = ahead.take(samples, size)
        assert piece.inputs.tolist() == size * [samples]


def test_an_error_is_raised_where_its_batch_is_used() -> None:
    ahead = PiecesAhead(CPU, Source(fails_at=2 * STEP).take, STEP)
    assert [first_of(ahead.take(samples, SIZE)) for samples in (0, STEP)] == [0, STEP]
    with pytest.raises(OSError, match="the disk is gone"):
        ahead.take(2 * STEP, SIZE)
    assert first_of(ahead.take(2 * STEP, SIZE)) == 2 * STEP


def test_pieces_that_are_read_one_by_one_are_left_to_what_reads_them() -> None:
    read: list[int] = []

    def read_piece(number: int) -> tuple[Any, Any]:
        read.append(number)
        return torch.zeros(1), torch.zeros(1)

    pieces = PiecesAhead(CPU, lambda samples, size: PiecesToRead(2, read_piece), STEP).take(0, SIZE)
    assert not read
    assert len(list(pieces)) == len(pieces) == 2


def test_what_threads_read_uses_the_device_of_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with several GPUs a thread begins with the first one, whatever the rank's is."""
    used: list[str] = []
    monkeypatch.setattr(Processor, "use", lambda self: used.append(threading.current_thread().name))
    source = Source()
    PiecesAhead(CPU, source.take, STEP).take(0, SIZE)
    assert set(used) == source.threads


def flatten(pieces: Pieces) -> list[Any]:
    """Return copies of everything in pieces."""
    return [x.clone() for each in pieces for x in (each.inputs, each.targets)]


@pytest.mark.parametrize("name", [name for name in TRAINING if name != "kfac"])
def test_batches_depend_on_samples_alone(name: str, data_root: Path) -> None:
    """So they may be read at any time, by any thread. K-FAC mixes batches when it gets them."""
    task: Trainer = tasks.build(tasks.configure_small(name, data_root))
    first, second, again = (flatten(task.data.take(each, task.piece_size)) for each in (0, 8, 0))
    task.samples = 8
    ahead = flatten(task.next_pieces())
    assert all(map(torch.equal, first, again))
    assert all(map(torch.equal, second, ahead))
    assert not all(map(torch.equal, first, second))


@pytest.mark.parametrize("name", ["gnmt", "transformer"])
def test_padding_is_counted_of_what_was_trained_and_not_of_what_was_read(
    name: str, data_root: Path
) -> None:
    """Also of what a run had trained before it was resumed."""
    task: Trainer = tasks.build(tasks.configure_small(name, data_root, "pass_tokens=512"))
    places = tokens = 0
    for samples in (0, 8, 16):
        assert task.data.count(samples) == (places, tokens)
        for piece in task.ahead.take(samples, task.piece_size):
            both = (piece.inputs, piece.targets)
            places += sum(each.numel() for each in both)
            tokens += sum(int((each != PADDING).sum()) for each in both)
