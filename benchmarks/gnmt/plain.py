"""GNMT as one writes it first, in a plain eager loop: what the reference is timed against.

The encoder reads packed sequences, as torch's documentation has it. The decoder takes one token
after the other through cells of LSTMs and projects the keys of its attention each time. Batches are
drawn at random, and each rank's share is one padded block. Adam is torch's default.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from cepheid.benchmarks.gnmt.model import Shape
from cepheid.benchmarks.gnmt.task import WORKLOAD as REFERENCE
from cepheid.reference.data.sentences.batches import AS_DRAWN, PADDING
from cepheid.reference.torch.translation.beam_search import shift
from cepheid.reference.torch.translation.variants import simplify


class Peer(nn.Module):
    """The network in torch's modules; sentences come first in all of them."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, width = shape, shape.width
        options: dict[str, Any] = {"batch_first": True}
        self.embedding = nn.Embedding(shape.vocabulary, width, padding_idx=PADDING)
        self.both = nn.LSTM(width, width, bidirectional=True, **options)
        upper = range(shape.layers - 1)
        self.encoder = nn.ModuleList(
            nn.LSTM(width if n else 2 * width, width, **options) for n in upper
        )
        self.asking = nn.LSTMCell(width, width)
        self.query, self.key = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.direction, self.bias = (nn.Parameter(torch.zeros(width)) for _ in range(2))
        self.scale = nn.Parameter(torch.ones(()))
        self.decoder = nn.ModuleList(nn.LSTMCell(2 * width, width) for _ in upper)
        self.classifier = nn.Linear(width, shape.vocabulary)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -shape.initial_range, shape.initial_range)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the logits of every place of ``target``, (sentences, places, vocabulary)."""
        encoded, padding = self.encode(source), source == PADDING
        width = self.shape.width
        zeros = encoded.new_zeros(len(source), width)
        states = [(zeros, zeros) for _ in range(self.shape.layers)]
        logits = []
        for tokens in shift(target).unbind(1):
            embedded = self.embedding(tokens)
            states[0] = self.asking(self.drop(embedded), states[0])
            result = states[0][0]
            answer = self.read(result, encoded, padding)
            for number, cell in enumerate(self.decoder, 1):
                inputs = self.drop(torch.cat([result, answer], dim=1))
                states[number] = cell(inputs, states[number])
                result = states[number][0] + (result if number > 1 else 0)
            logits.append(self.classifier(result))
        return torch.stack(logits, dim=1)

    def encode(self, source: Tensor) -> Tensor:
        """Return the encoded source, (sentences, places, width)."""
        lengths = (source != PADDING).sum(1).cpu()

        def run(layer: nn.Module, inputs: Tensor) -> Tensor:
            packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
            return pad_packed_sequence(layer(packed)[0], batch_first=True)[0]

        states = run(self.both, self.drop(self.embedding(source)))
        for number, layer in enumerate(self.encoder):
            result = run(layer, self.drop(states))
            states = result + states if number else result
        return states

    def read(self, state: Tensor, encoded: Tensor, padding: Tensor) -> Tensor:
        """Return what ``state``, (sentences, width), reads of the source."""
        vector = self.scale * self.direction / self.direction.norm()
        mixed = torch.tanh(self.query(state)[:, None] + self.key(encoded) + self.bias)
        energy = (mixed * vector).sum(-1).masked_fill(padding, float("-inf"))
        return (energy.softmax(1)[:, :, None] * encoded).sum(1)

    def drop(self, inputs: Tensor) -> Tensor:
        """Return the input of an LSTM, (sentences, …), with dropout."""
        return dropout(inputs, self.shape.dropout, self.training)


WORKLOAD = simplify(REFERENCE).vary(
    read_shape=lambda config: replace(REFERENCE.read_shape(config), bucketing=AS_DRAWN),
    make_network=lambda shape, norms: Peer(shape.sizes),
)
"""The task with this network; for compile=off and the precision of the reference."""
