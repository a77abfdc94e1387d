"""Read what comes next while what is there is used: the one way in which batches are read ahead.

Image loaders, the trainer and Keras have it in common. On TensorFlow ``tf.data`` reads instead.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Generic, Protocol, TypeVar

AHEAD = 2  # batches that are being read while one is used
AT_ONCE = 4  # batches that threads read for Keras

Key = TypeVar("Key")
Value = TypeVar("Value")
Read = TypeVar("Read", covariant=True)


class Coming(Protocol[Read]):
    """Something that threads are reading: a ``Future``, or several of them."""

    def result(self) -> Read:
        """Return it when all of it is there; raise what went wrong."""

    def cancel(self) -> object:
        """Give up what has not begun."""


def take_in_turn(
    start: Callable[[Key], Coming[Value]], keys: Iterable[Key], ahead: int = AHEAD
) -> Generator[Value, None, None]:
    """Yield what ``start`` brings for each of ``keys`` in turn; the next ``ahead`` are coming."""
    coming: deque[Coming[Value]] = deque()
    try:
        for key in keys:
            coming.append(start(key))
            if len(coming) > ahead:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()
    finally:
        for each in coming:
            each.cancel()


def read_ahead(read: Callable[[Key], Value], keys: Iterable[Key]) -> Iterator[Value]:
    """Yield ``read(key)`` for each of ``keys``; ``AT_ONCE`` of them are read meanwhile.

    An error of ``read`` is raised as it is.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from take_in_turn(lambda key: pool.submit(read, key), keys, AT_ONCE)


class Prefetcher(Generic[Value]):
    """Parts of training batches, of which the next ones are always coming.

    ``start((samples, part))`` starts a part of the batch after ``samples`` trained samples; each
    batch has ``parts`` of them, and ``step`` samples lie between one batch and the next.
    """

    def __init__(
        self, start: Callable[[tuple[int, int]], Coming[Value]], step: int, parts: int = 1
    ) -> None:
        self.start, self.step, self.parts = start, step, parts
        self._coming = take_in_turn(start, ())
        self._taken: tuple[int, int] | None = None
        self._next: tuple[int, int] | None = None

    def take(self, samples: int, part: int = 0) -> Value:
        """Return a part of the batch after ``samples`` samples, the same if it is asked again."""
        asked = samples, part
        if asked != self._taken:
            if asked != self._next:
                self.forget()
                self._coming = take_in_turn(self.start, self._count_on(*asked))
            self._taken = self._next = None
            self._value = next(self._coming)
            self._taken, self._next = asked, next(self._count_on(samples, part + 1))
        return self._value

    def forget(self) -> None:
        """Give up all batches that are coming."""
        self._taken = self._next = None
        self._coming.close()

    def _count_on(self, samples: int, part: int) -> Iterator[tuple[int, int]]:
        """Yield samples and part of each part from this one of a batch on, without an end."""
        for number in count(part):
            yield samples + number // self.parts * self.step, number % self.parts
