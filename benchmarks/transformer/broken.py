"""Broken variants of transformer: each must miss the target within the full budget.

They are mistakes and tricks that a quality target must detect.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from torch import Tensor, nn

from cepheid.benchmarks.transformer.model import Memory, Transformer
from cepheid.benchmarks.transformer.task import Translation
from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch import broken
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.reference.torch.translation.broken import ShuffledTargets as Shuffled


class ShuffledTargets(Shuffled, Translation):
    """Training targets belong to other sources: only German can be learnt, not the content."""


class Frozen(broken.Frozen, Translation):
    """The weights stay as initialised."""


class Blind(Transformer):
    """A network whose decoder always reads zeros of the source, though gradients flow."""

    def remember(self, source: Tensor) -> Memory:
        """Encode ``source``, (sentences, places), with all values zero."""
        memory = super().remember(source)
        values = tuple(part * 0.0 for part in memory.values)
        return replace(memory, values=values)


class NoSource(Translation):
    """A language model that writes German independent of the source."""

    def make_network(self) -> nn.Module:
        """Return the network that is blind to the source."""
        return Blind(self.shape)


class Unordered(Transformer):
    """A network that sees the source as a bag of tokens."""

    def remember(self, source: Tensor) -> Memory:
        """Encode ``source``, (sentences, places), with its tokens sorted by number."""
        return super().remember(source.sort(dim=1, descending=True).values)


class BagOfWords(Translation):
    """Translation of words without their order, which leaves subject and object ambiguous."""

    def make_network(self) -> nn.Module:
        """Return the network that sorts its sources."""
        return Unordered(self.shape)


VARIANTS: Mapping[str, Callable[[RunConfig, TorchRanks], Translation]] = {
    "shuffled_targets": ShuffledTargets,
    "frozen": Frozen,
    "no_source": NoSource,
    "bag_of_words": BagOfWords,
}
