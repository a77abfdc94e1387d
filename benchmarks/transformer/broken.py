"""Broken variants of transformer: each must miss the target within the full budget.

They stand for mistakes and tricks that a quality target has to notice.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from torch import Tensor, nn

from benchmarks.transformer.model import Memory, Transformer
from benchmarks.transformer.task import Translation
from reference.data.wmt.pairs import Tokens
from reference.run.config import RunConfig
from reference.run.seeding import generator
from reference.torch.distributed import TorchRanks


class ShuffledTargets(Translation):
    """Training targets belong to other sources: only German can be learnt, not what to say."""

    def open_data(self) -> None:
        """As ever, then deal the training targets out anew."""
        super().open_data()
        train, target = self.definition.train_samples, self.pairs.target
        order = np.arange(len(target.ends))
        order[:train] = generator(self.config.seed, "shuffled targets").permutation(train)
        rows = [target.row(int(row)) for row in order]
        dealt = Tokens(np.concatenate(rows), np.cumsum([len(row) for row in rows]))
        self.pairs = replace(self.pairs, target=dealt)
        self.batches = self.make_batches()


class Frozen(Translation):
    """The weights stay as they were initialised."""

    def apply_gradients(self) -> None:
        """Count the samples, change nothing."""
        self.samples += self.config.global_batch_size
        self.optimizer.zero_grad()


class Blind(Transformer):
    """What the decoder reads of the source is always zero, though its gradients flow."""

    def remember(self, source: Tensor) -> Memory:
        """As ever, times zero."""
        memory = super().remember(source)
        values = tuple(part * 0.0 for part in memory.values)
        return replace(memory, values=values)


class NoSource(Translation):
    """A language model: it says something German, whatever the source."""

    def make_network(self) -> nn.Module:
        """The network that is blind to the source."""
        return Blind(self.shape)


class Unordered(Transformer):
    """The source is a bag of tokens."""

    def remember(self, source: Tensor) -> Memory:
        """Sources in the order of their tokens' numbers, whatever it was."""
        return super().remember(source.sort(dim=1, descending=True).values)


class BagOfWords(Translation):
    """Words without their order: who does what to whom has to be guessed."""

    def make_network(self) -> nn.Module:
        """The network that gets sorted sources."""
        return Unordered(self.shape)


VARIANTS: Mapping[str, Callable[[RunConfig, TorchRanks], Translation]] = {
    "shuffled_targets": ShuffledTargets,
    "frozen": Frozen,
    "no_source": NoSource,
    "bag_of_words": BagOfWords,
}
