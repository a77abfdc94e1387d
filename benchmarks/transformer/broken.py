"""Broken variants of transformer: each must miss the target within the full budget.

They are mistakes and tricks that a quality target must detect.
"""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from cepheid.benchmarks.transformer.model import Memory, Transformer
from cepheid.benchmarks.transformer.task import WORKLOAD, Sentences
from cepheid.reference.torch import broken
from cepheid.reference.torch.translation.variants import change_targets, shuffle_targets
from cepheid.reference.torch.workload import Workload


class Blind(Transformer):
    """A language model: its decoder always reads zeros of the source, though gradients flow."""

    def remember(self, source: Tensor) -> Memory:
        """Encode ``source``, (sentences, places), with all values zero."""
        memory = super().remember(source)
        values = tuple(part * 0.0 for part in memory.values)
        return replace(memory, values=values)


class Unordered(Transformer):
    """A network that sees words without their order: subject and object are ambiguous."""

    def remember(self, source: Tensor) -> Memory:
        """Encode ``source``, (sentences, places), with its tokens sorted by number."""
        return super().remember(source.sort(dim=1, descending=True).values)


VARIANTS: Mapping[str, Workload[Sentences]] = {
    "shuffled_targets": change_targets(WORKLOAD, shuffle_targets),
    "frozen": broken.freeze(WORKLOAD),
    "no_source": WORKLOAD.vary(make_network=lambda shape, norms: Blind(shape.sizes)),
    "bag_of_words": WORKLOAD.vary(make_network=lambda shape, norms: Unordered(shape.sizes)),
}
