"""Broken variants of gnmt: each must miss the target within the full budget.

They are mistakes and tricks that a quality target must detect. Teacher forcing in an evaluation is
no variant: the beam search gets the sources alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from cepheid.benchmarks.gnmt.model import GNMT, Attention, Memory
from cepheid.benchmarks.gnmt.recurrent import State
from cepheid.benchmarks.gnmt.task import WORKLOAD, Sentences
from cepheid.reference.data.sentences.batches import Tokens
from cepheid.reference.torch import broken
from cepheid.reference.torch.translation.variants import change_targets, shuffle_targets
from cepheid.reference.torch.workload import Workload


def reverse_targets(shape: Sentences, target: Tokens) -> Tokens:
    """Return training targets that are written backwards, END last; the references are not."""
    values, first = target.values.copy(), 0
    for end in target.ends[: shape.config.definition.train_samples]:
        values[first : end - 1] = values[first : end - 1][::-1].copy()
        first = end
    return Tokens(values, target.ends)


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


VARIANTS: Mapping[str, Workload[Sentences]] = {
    "shuffled_targets": change_targets(WORKLOAD, shuffle_targets),
    "frozen": broken.freeze(WORKLOAD),
    "no_source": WORKLOAD.vary(make_network=lambda shape, norms: Blind(shape.sizes)),
    "bag_of_words": WORKLOAD.vary(make_network=lambda shape, norms: Unordered(shape.sizes)),
    "no_attention": WORKLOAD.vary(make_network=lambda shape, norms: Bottleneck(shape.sizes)),
    "reversed_targets": change_targets(WORKLOAD, reverse_targets),
    "forgetful": WORKLOAD.vary(make_network=lambda shape, norms: Forgetful(shape.sizes)),
}
