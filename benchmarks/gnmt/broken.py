"""Broken variants of gnmt: each must miss the target within the full budget.

They are mistakes and tricks that a quality target must detect. Teacher forcing in an evaluation is
no variant: the beam search gets the sources alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor, nn

from cepheid.benchmarks.gnmt.model import GNMT, Attention, Memory
from cepheid.benchmarks.gnmt.recurrent import State
from cepheid.benchmarks.gnmt.task import Translation
from cepheid.reference.data.wmt.pairs import Tokens
from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch import broken
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.reference.torch.translation.broken import ShuffledTargets as Shuffled


class ShuffledTargets(Shuffled, Translation):
    """Training targets belong to other sources: only German can be learnt, not the content."""


class Frozen(broken.Frozen, Translation):
    """The weights stay as initialised."""


class ReversedTargets(Translation):
    """Training targets are written backwards, END last; the references are not."""

    def open_data(self) -> None:
        """Open the data, then reverse the training targets."""
        super().open_data()
        target = self.pairs.target
        values, first = target.values.copy(), 0
        for end in target.ends[: self.definition.train_samples]:
            values[first : end - 1] = values[first : end - 1][::-1].copy()
            first = end
        self.pairs = replace(self.pairs, target=Tokens(values, target.ends))
        self.batches = self.make_batches()


class Blind(GNMT):
    """A network whose attention always reads zeros of the source, though gradients flow."""

    def remember(self, source: Tensor) -> Memory:
        """Encode ``source``, (sentences, places), with all values zero."""
        memory = super().remember(source)
        return replace(memory, values=memory.values * 0.0)


class Unordered(GNMT):
    """A network that sees the source as a bag of tokens."""

    def remember(self, source: Tensor) -> Memory:
        """Encode ``source``, (sentences, places), with its tokens sorted by number."""
        return super().remember(source.sort(dim=1, descending=True).values)


class Even(Attention):
    """An attention that is the same at all places, whatever is asked."""

    def score(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return energies, (sentences, n, places), without any differences."""
        return super().score(queries, keys) * 0.0


class Bottleneck(GNMT):
    """A network without attention: of the source it reads one vector, its mean state."""

    attention_type = Even


class Forgetful(GNMT):
    """A network whose decoder forgets everything before the last token."""

    def decode(
        self, states: Tensor, memory: Memory, before: Sequence[State] | None
    ) -> tuple[Tensor, Tensor, list[State]]:
        """Return outputs, attention and states for embedded tokens, each alone.

        Shapes are those of ``GNMT.decode``: (places, sentences, …).
        """
        places, sentences, width = states.shape
        if before is not None or places == 1:
            return super().decode(states, memory, None)
        # The places of a sentence stand beside each other, like hypotheses.
        alone = states.transpose(0, 1).reshape(1, -1, width)
        result, attention, after = super().decode(alone, memory, None)
        return result.view(sentences, places, width).transpose(0, 1), attention, after


def with_network(kind: type[GNMT]) -> Callable[[RunConfig, TorchRanks], Translation]:
    """Return what creates the task with another network."""

    class Variant(Translation):
        def make_network(self) -> nn.Module:
            return kind(self.shape)

    return Variant


VARIANTS: Mapping[str, Callable[[RunConfig, TorchRanks], Translation]] = {
    "shuffled_targets": ShuffledTargets,
    "frozen": Frozen,
    "no_source": with_network(Blind),
    "bag_of_words": with_network(Unordered),
    "no_attention": with_network(Bottleneck),
    "reversed_targets": ReversedTargets,
    "forgetful": with_network(Forgetful),
}
