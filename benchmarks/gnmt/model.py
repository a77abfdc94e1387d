"""GNMT v2 as MLPerf Training v0.6 had it, a recurrent encoder and decoder with attention.

Encoder: a bidirectional LSTM, then LSTMs of one direction. Decoder: an LSTM whose outputs ask the
attention, then LSTMs that read the answer beside the layer below. Residual connections lead around
every layer from the third on. Attention is Bahdanau's, normalised (arXiv:1409.0473; 1602.07868):
its answers come from the first decoder layer alone and feed the upper ones, so that each layer sees
the whole target at once and only the LSTMs loop. ``variant="input_feeding"`` is Google's network:
the last answer is also an input of the first decoder layer, which then has to go step by step with
the attention. One matrix embeds both languages; the classifier has its own. Dropout is at the
inputs of LSTMs.

States are (places, sentences, width), tokens (sentences, places).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from cepheid.benchmarks.gnmt.recurrent import Form, Recurrent, State, reverse
from cepheid.reference.data.sentences.batches import PADDING
from cepheid.reference.torch.translation.beam_search import shift

Variant = Literal["gnmt_v2", "input_feeding"]
PUBLISHED_WIDTH, PUBLISHED_RANGE = 1024, 0.1


@dataclass(frozen=True)
class Shape:
    """The sizes of the network; ``layers`` is the number in each of the two stacks."""

    vocabulary: int
    width: int
    layers: int
    dropout: float = 0.0
    variant: Variant = "gnmt_v2"

    @property
    def initial_range(self) -> float:
        """The bound of the uniform distribution of initial weights, 0.1 at the published width.

        Products keep the size of their sums at any width.
        """
        return PUBLISHED_RANGE * math.sqrt(PUBLISHED_WIDTH / self.width)


@dataclass(frozen=True)
class Memory:
    """The encoded sources: keys and values (sentences, places, width) each.

    ``padding``, (sentences, 1, places), is True where there is no token.
    """

    keys: Tensor
    values: Tensor
    padding: Tensor

    def of(self, sentences: Tensor) -> "Memory":
        """Return the memory of some of the sentences, given by their numbers, (n,)."""
        return Memory(*(part.index_select(0, sentences) for part in vars(self).values()))


class Attention(nn.Module):
    """Normalised Bahdanau attention: energy = g · v/|v| · tanh(query + key + b).

    The bias b belongs to the layer of the keys.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width)
        self.direction = nn.Parameter(torch.empty(width))
        self.scale = nn.Parameter(torch.empty(()))

    def remember(self, encoded: Tensor, padding: Tensor) -> Memory:
        """Project the keys of encoded sources, (places, sentences, width), once for all queries."""
        values = encoded.transpose(0, 1)
        return Memory(self.key(values), values, padding[:, None])

    def forward(self, states: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """Return what ``states``, (sentences, n, width), read, in their shape, and the attention.

        It is (sentences, n, places of the source).
        """
        energies = self.score(self.query(states), memory.keys)
        attention = energies.float().masked_fill(memory.padding, float("-inf")).softmax(-1)
        return attention.to(memory.values.dtype) @ memory.values, attention

    def score(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return energies, (sentences, n, places), of queries and keys (sentences, …, width)."""
        vector = self.direction * (self.scale / self.direction.norm())
        return (queries[:, :, None] + keys[:, None]).tanh() @ vector


class GNMT(nn.Module):
    """Encoder and decoder; maps token numbers to logits."""

    attention_type = Attention

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, width = shape, shape.width
        has_feeding = shape.variant == "input_feeding"
        self.embedding = nn.Embedding(shape.vocabulary, width)
        self.forwards, self.backwards = Recurrent(width, width), Recurrent(width, width)
        upper = range(shape.layers - 1)
        self.encoder = nn.ModuleList(Recurrent(width if n else 2 * width, width) for n in upper)
        self.asking = Recurrent(2 * width if has_feeding else width, width)
        self.attention = self.attention_type(width)
        self.decoder = nn.ModuleList(Recurrent(2 * width, width) for _ in upper)
        self.classifier = nn.Linear(width, shape.vocabulary)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.uniform_(-shape.initial_range, shape.initial_range)
            self.attention.scale.fill_(1 / math.sqrt(width))
            self.attention.key.bias.zero_()

    def use_form(self, form: Form) -> None:
        """Compute all LSTMs in this way from now on."""
        for module in self.modules():
            if isinstance(module, Recurrent):
                module.form = form

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the logits of every place of ``target``, given the places before it.

        ``source`` and ``target`` are token numbers, int64 (sentences, places), with PADDING after
        END. The logits are (sentences, places, vocabulary).
        """
        states = self.embedding(shift(target).t())
        states, _, _ = self.decode(states, self.remember(source), None)
        return self.classifier(states.transpose(0, 1))

    def remember(self, source: Tensor) -> Memory:
        """Encode ``source``, int64 (sentences, places)."""
        is_token = source != PADDING
        lengths = is_token.sum(1)
        states = self.embedding(source.t())
        there, _ = self.forwards(self.drop(states))
        back, _ = self.backwards(reverse(self.drop(states), lengths))
        states = torch.cat([there, reverse(back, lengths)], dim=2)
        for number, layer in enumerate(self.encoder):
            result, _ = layer(self.drop(states))
            states = result + states if number else result
        return self.attention.remember(states, ~is_token)

    def decode(
        self, states: Tensor, memory: Memory, before: Sequence[State] | None
    ) -> tuple[Tensor, Tensor, list[State]]:
        """Return the outputs for embedded tokens, the attention and the states of all layers.

        Both are (places, sentences, …), or (1, sentences · hypotheses, …) where ``before``, the
        states of the layers, goes on with several hypotheses of each sentence. With input feeding
        the last of these states is the answer of the attention.
        """
        if self.shape.variant == "input_feeding":
            states, read, attention, after = self.ask_step_by_step(states, memory, before)
        else:
            states, state = self.asking(self.drop(states), before and before[0])
            read, attention = self.read(states, memory)
            after = [state]
        for number, layer in enumerate(self.decoder):
            inputs = self.drop(torch.cat([states, read], dim=2))
            result, state = layer(inputs, before and before[number + 1])
            states = result + states if number else result
            after.insert(number + 1, state)
        return states, attention, after

    def ask_step_by_step(
        self, states: Tensor, memory: Memory, before: Sequence[State] | None
    ) -> tuple[Tensor, Tensor, Tensor, list[State]]:
        """Return outputs and answers of the first layer, where each answer is its next input.

        Both are (places, sentences, width), the attention is (sentences, places, source places).
        """
        answer = before[-1][0] if before else torch.zeros_like(states[:1])
        state = before[0] if before else None
        results, answers, attentions = [], [], []
        for one in states.split(1):
            result, state = self.asking(self.drop(torch.cat([one, answer], dim=2)), state)
            answer, attention = self.read(result, memory)
            results.append(result)
            answers.append(answer)
            attentions.append(attention)
        assert state is not None, "there is no token"
        parts = torch.cat(results), torch.cat(answers), torch.cat(attentions, dim=1)
        return *parts, [state, (answer, answer)]

    def read(self, states: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """Return what ``states``, (places, sentences, width), read, in their shape.

        The hypotheses of a sentence stand beside each other in a step of a search, and are queries
        of one source. The attention is (sentences, places or hypotheses, places of the source).
        """
        sentences = len(memory.keys)
        if states.shape[1] == sentences:
            read, attention = self.attention(states.transpose(0, 1), memory)
            return read.transpose(0, 1), attention
        read, attention = self.attention(states.view(sentences, -1, states.shape[2]), memory)
        return read.reshape(states.shape), attention

    def start_decoding(self, source: Tensor, hypotheses: int, places: int) -> "RecurrentDecoding":
        """Encode ``source``, (sentences, places), for any number of tokens."""
        return RecurrentDecoding(self, self.remember(source))

    def drop(self, states: Tensor) -> Tensor:
        """Return the input of an LSTM, (places, sentences, channels), with dropout."""
        return dropout(states, self.shape.dropout, self.training)


class RecurrentDecoding:
    """A decoder with the states of its layers after the tokens so far."""

    def __init__(self, network: "GNMT", memory: "Memory") -> None:
        self.network, self.memory = network, memory
        self.states: list[State] | None = None

    def step(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Append ``tokens``, (sentences, hypotheses); return logits of the next place, attention.

        They are (sentences, hypotheses, vocabulary) and (sentences, hypotheses, source places).
        """
        embedded = self.network.embedding(tokens.reshape(1, -1))
        outputs, attention, self.states = self.network.decode(embedded, self.memory, self.states)
        logits = self.network.classifier(outputs)
        return logits.view(*tokens.shape, -1), attention.view(*tokens.shape, -1)

    def keep(self, hypotheses: Tensor, sentences: Tensor | None) -> None:
        """Go on with ``hypotheses``, (n,), of all or of some ``sentences``, (m,)."""
        assert self.states is not None, "no token came before"
        if sentences is not None:
            self.memory = self.memory.of(sentences)
        self.states = [
            (output.index_select(1, hypotheses), cell.index_select(1, hypotheses))
            for output, cell in self.states
        ]
