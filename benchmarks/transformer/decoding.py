"""The Transformer during a beam search: keys and values of every hypothesis are cached.

The hypotheses of a sentence read its source as queries beside each other, so nothing of the source
is copied.
"""

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from cepheid.benchmarks.transformer.model import Memory, Transformer


class CachedDecoding:
    """A decoder with the keys and values of the tokens so far, and those of the sources."""

    def __init__(
        self, network: "Transformer", memory: "Memory", hypotheses: int, places: int
    ) -> None:
        self.network, self.memory, self.place = network, memory, 0
        keys = memory.keys[0]
        shape = (len(keys) * hypotheses, keys.shape[1], places, keys.shape[3])
        self.caches = [(keys.new_empty(shape), keys.new_empty(shape)) for _ in network.decoder]

    def step(self, tokens: Tensor) -> tuple[Tensor, None]:
        """Append ``tokens``, (sentences, hypotheses); return the logits of the next place.

        They are (sentences, hypotheses, vocabulary). Many heads attend, so there is no single
        attention.
        """
        logits = self.network.step(tokens, self.place, self.caches, self.memory)
        self.place += 1
        return logits, None

    def keep(self, hypotheses: Tensor, sentences: Tensor | None) -> None:
        """Go on with ``hypotheses``, (n,), of all or of some ``sentences``, (m,)."""
        if sentences is not None:
            self.memory = self.memory.of(sentences)
        self.caches = [
            (self._select(keys, hypotheses), self._select(values, hypotheses))
            for keys, values in self.caches
        ]

    def _select(self, part: Tensor, hypotheses: Tensor) -> Tensor:
        """Return the cache of other hypotheses; only the places so far are filled."""
        result = part.new_empty((len(hypotheses), *part.shape[1:]))
        result[:, :, : self.place] = part[:, :, : self.place].index_select(0, hypotheses)
        return result
