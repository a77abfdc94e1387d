"""The pieces of coming steps, which a thread reads while the device computes the present one.

They lie in memory from which the device copies while the host goes on, so that neither reading nor
copying them is waited for where a step takes longer.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from cepheid.reference.data.ahead import Prefetcher
from cepheid.reference.torch.device import Device
from cepheid.reference.torch.pieces import Piece, Pieces


class PiecesAhead:
    """The pieces of each step, of which those of the next ones are always coming.

    ``read`` returns the pieces of a size of the batch after so many samples; ``step`` samples lie
    between one batch and the next. A thread calls it ahead of the steps, so its result must depend
    on nothing else. Pieces that are read one by one are left as they are: what reads them reads
    ahead itself.
    """

    def __init__(self, device: Device, read: Callable[[int, int], Pieces], step: int) -> None:
        self._device, self._read, self._size = device, read, 0
        # The current device belongs to a thread, and pinned memory to the current device.
        self._thread = ThreadPoolExecutor(1, "read", device.use)
        self._batches = Prefetcher(self._start, step)

    def take(self, samples: int, size: int) -> Pieces:
        """Return the pieces of the batch after ``samples``, the same if they are asked again.

        A piece has ``size`` samples; with another size than before nothing was read ahead.
        """
        if size != self._size:
            self._batches.forget()
            self._size = size
        return self._batches.take(samples)

    def _start(self, place: tuple[int, int]) -> Future[Pieces]:
        samples, _ = place
        return self._thread.submit(self._make, samples, self._size)

    def _make(self, samples: int, size: int) -> Pieces:
        pieces, pin = self._read(samples, size), self._device.pin
        if not isinstance(pieces, Sequence):
            return pieces
        return [Piece(pin(each.inputs), pin(each.targets), each.weight) for each in pieces]
