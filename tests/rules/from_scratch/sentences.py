"""The networks of transformer and gnmt, written from rules/from_scratch.md alone."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.rules.from_scratch.layers import begin, lay, make, measure_entropies, norm

PADDING, END = 0, 1


def shift(target: Tensor) -> Tensor:
    return F.pad(target[:, :-1], (1, 0), value=END)


def measure_losses(logits: Tensor, target: Tensor, smoothing: float) -> Tensor:
    """Return the smoothed cross-entropy of all tokens that are no padding."""
    return measure_entropies(logits, target, smoothing)[target != PADDING]


class Attention(nn.Module):
    """Matrices of queries, keys and values (some below each other), and of the output."""

    def __init__(self, width: int, heads: int, stacked: tuple[int, ...]) -> None:
        super().__init__()
        self.heads = heads
        self.parts = nn.ParameterList(
            make(count * width, width, deviation=width**-0.5, is_even=True) for count in stacked
        )
        self.out = lay(nn.Linear(width, width, bias=False), "glorot")

    def forward(self, x: Tensor, seen: Tensor, hidden: Tensor) -> Tensor:
        """Return what places x find in places ``seen`` that are not ``hidden``."""
        matrices = torch.cat(list(self.parts)).chunk(3)
        q, k, v = (
            (each @ matrix.T).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for each, matrix in zip((x, seen, seen), matrices, strict=True)
        )
        scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(hidden, -math.inf)
        result: Tensor = self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return result


class Block(nn.Module):
    """A layer of the encoder, or one of the decoder, which also reads the source."""

    def __init__(self, width: int, heads: int, inner: int, reads: bool) -> None:
        super().__init__()
        self.own = Attention(width, heads, (3,))
        self.of_source = Attention(width, heads, (1, 2)) if reads else None
        self.first = lay(nn.Linear(width, inner), "glorot")
        self.second = lay(nn.Linear(inner, width), "glorot")
        self.norms = nn.ModuleList(norm(width, 1.0, nn.LayerNorm) for _ in range(2 + reads))

    def forward(self, x: Tensor, hidden: Tensor, memory: Any = None, padding: Any = None) -> Any:
        y = self.norms[0](x)
        x = x + self.own(y, y, hidden)
        if self.of_source is not None:
            x = x + self.of_source(self.norms[1](x), memory, padding)
        return x + self.second(F.relu(self.first(self.norms[-1](x))))


class Transformer(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        width, sizes = model["width"], (model["width"], model["heads"], model["feed_forward"])
        self.words = make(model["vocabulary"], width, deviation=width**-0.5)
        self.encoder, self.decoder = (
            nn.ModuleList(Block(*sizes, reads) for _ in range(model["layers"]))
            for reads in (False, True)
        )
        self.ends = nn.ModuleList(norm(width, 1.0, nn.LayerNorm) for _ in range(2))

    def embed(self, tokens: Tensor) -> Any:
        width = self.words.shape[1]
        f = 10_000 ** (-torch.arange(width // 2) / (width / 2 - 1))
        angles = torch.arange(tokens.shape[1])[:, None] * f
        return self.words[tokens] * math.sqrt(width) + torch.cat([angles.sin(), angles.cos()], 1)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the logits of the target's tokens."""
        padding, memory = (source == PADDING)[:, None, None], self.embed(source)
        for block in self.encoder:
            memory = block(memory, padding)
        memory, x = self.ends[0](memory), self.embed(shift(target))
        later = torch.ones(x.shape[1], x.shape[1]).triu(1) > 0
        for block in self.decoder:
            x = block(x, later, memory, padding)
        logits: Tensor = self.ends[1](x) @ self.words.T
        return logits


class GNMT(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        width, words, more = model["width"], model["vocabulary"], model["layers"] - 1
        self.words = nn.Embedding(words, width)
        inputs = [width, width, 2 * width, *[width] * (more - 1)]
        self.encoder = nn.ModuleList(nn.LSTM(each, width, batch_first=True) for each in inputs)
        self.asking = nn.LSTM(width, width, batch_first=True)
        self.v, self.g = make(width), make()
        self.query, self.key = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.decoder = nn.ModuleList(
            nn.LSTM(2 * width, width, batch_first=True) for _ in range(more)
        )
        self.classifier = nn.Linear(width, words)
        for value in self.parameters():
            begin(value, 0.1 * math.sqrt(1024 / width / 3), is_even=True)
        begin(self.g, 0.0, width**-0.5)
        begin(self.key.bias, 0.0)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the logits of the target's tokens."""
        x, hidden = self.words(source), source == PADDING
        places, lengths = torch.arange(source.shape[1]), (~hidden).sum(1)[:, None]
        back = torch.where(places < lengths, lengths - 1 - places, places)[..., None]
        back = back.expand_as(x)
        reversed_ = self.encoder[1](x.gather(1, back))[0].gather(1, back)
        h = torch.cat([self.encoder[0](x)[0], reversed_], 2)
        for number, layer in enumerate(self.encoder[2:]):
            y = layer(h)[0]
            h = h + y if number else y
        q = self.asking(self.words(shift(target)))[0]
        e = torch.tanh(self.query(q)[:, :, None] + self.key(h)[:, None])
        e = (e @ (self.g * self.v / self.v.norm())).masked_fill(hidden[:, None], -math.inf)
        answer = e.softmax(-1) @ h
        for number, layer in enumerate(self.decoder):
            y = layer(torch.cat([q, answer], 2))[0]
            q = q + y if number else y
        logits: Tensor = self.classifier(q)
        return logits
