"""The Transformer of Vaswani et al. 2017 (arXiv:1706.03762), as MLPerf Training v0.6 had it.

Pre-norm, as in tensor2tensor and the reference that MLPerf made of it: layers normalise what they
read, and the end of each stack is normalised once more; ``norm="post"`` is the paper's form. One
matrix embeds both languages and gives the logits. Attention has no biases, the feed-forward
networks have. Positions are sines and cosines, as long as the sentences are.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, embedding, linear, scaled_dot_product_attention

from cepheid.reference.data.sentences.batches import PADDING
from cepheid.reference.torch.translation.beam_search import shift

Norm = Literal["pre", "post"]
LONGEST_WAVE = 10_000.0


@dataclass(frozen=True)
class Shape:
    """The sizes of the network; ``layers`` is the number in each of the two stacks."""

    vocabulary: int
    width: int
    heads: int
    feed_forward: int
    layers: int
    norm: Norm = "pre"
    dropout: float = 0.0


@dataclass(frozen=True)
class Memory:
    """The encoded source sentences for the decoder.

    Keys and values of each of its layers are (sentences, heads, places, channels). ``mask`` is True
    where a place is not padding, or None if there is no padding.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    mask: Tensor | None

    def of(self, sentences: Tensor) -> "Memory":
        """Return the memory of some of the sentences, given by their numbers, (n,)."""
        return Memory(
            tuple(keys.index_select(0, sentences) for keys in self.keys),
            tuple(values.index_select(0, sentences) for values in self.values),
            None if self.mask is None else self.mask.index_select(0, sentences),
        )


class SelfAttention(nn.Module):
    """Attention with queries, keys and values from one matrix product."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.dropout = shape.heads, shape.dropout
        self.inputs = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.output = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, states: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Return the attention output of ``states``, (sentences, places, width).

        ``mask`` is True where a place may be read.
        """
        queries, keys, values = self.split(states)
        noise = self.dropout if self.training else 0.0
        read = scaled_dot_product_attention(queries, keys, values, mask, noise, is_causal=causal)
        return self.join_heads(read)

    def split(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, (sentences, heads, places, channels) each."""
        sentences, places, _ = states.shape
        parts = self.inputs(states).view(sentences, places, 3, self.heads, -1)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        return queries, keys, values

    def join_heads(self, read: Tensor) -> Tensor:
        """Return the output, (sentences, places, width), for what the heads have read."""
        return self.output(read.transpose(1, 2).flatten(2))


class SourceAttention(nn.Module):
    """The attention of the decoder to the source."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.dropout = shape.heads, shape.dropout
        self.query = nn.Linear(shape.width, shape.width, bias=False)
        self.inputs = nn.Linear(shape.width, 2 * shape.width, bias=False)
        self.output = nn.Linear(shape.width, shape.width, bias=False)

    def make_keys_and_values(self, encoded: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values, (sentences, heads, places, channels), of encoded sources."""
        sentences, places, _ = encoded.shape
        parts = self.inputs(encoded).view(sentences, places, 2, self.heads, -1)
        keys, values = parts.permute(2, 0, 3, 1, 4)
        return keys, values

    def forward(self, states: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Return the attention output of ``states``, (sentences, places, width)."""
        sentences, places, _ = states.shape
        queries = self.query(states).view(sentences, places, self.heads, -1).transpose(1, 2)
        noise = self.dropout if self.training else 0.0
        read = scaled_dot_product_attention(queries, keys, values, mask, noise)
        return self.output(read.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two linear layers, the same at every place."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.dropout = shape.dropout
        self.first = nn.Linear(shape.width, shape.feed_forward)
        self.second = nn.Linear(shape.feed_forward, shape.width)

    def forward(self, states: Tensor) -> Tensor:
        """Return the output in the shape of ``states``, (sentences, places, width)."""
        hidden = self.first(states).relu_()
        return self.second(dropout(hidden, self.dropout, self.training))


class Residual(nn.Module):
    """The norm of a sublayer and its residual connection."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.is_pre, self.dropout = shape.norm == "pre", shape.dropout
        self.norm = nn.LayerNorm(shape.width)

    def before(self, states: Tensor) -> Tensor:
        """Return the input of the sublayer, in the shape of ``states``."""
        return self.norm(states) if self.is_pre else states

    def after(self, states: Tensor, result: Tensor) -> Tensor:
        """Return ``states`` plus the sublayer's ``result``, in the same shape."""
        result = dropout(result, self.dropout, self.training)
        return states + result if self.is_pre else self.norm(states + result)


class EncoderLayer(nn.Module):
    """Attention among the places of the source, then the feed-forward network."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention, self.feed_forward = SelfAttention(shape), FeedForward(shape)
        self.around_attention, self.around_feed_forward = Residual(shape), Residual(shape)

    def forward(self, states: Tensor, mask: Tensor | None) -> Tensor:
        """Return the next states in the shape of ``states``, (sentences, places, width)."""
        around = self.around_attention
        states = around.after(states, self.attention(around.before(states), mask))
        around = self.around_feed_forward
        return around.after(states, self.feed_forward(around.before(states)))


class DecoderLayer(nn.Module):
    """Attention to earlier places, attention to the source, then the feed-forward network."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention, self.source = SelfAttention(shape), SourceAttention(shape)
        self.feed_forward = FeedForward(shape)
        self.around_attention, self.around_source = Residual(shape), Residual(shape)
        self.around_feed_forward = Residual(shape)

    def forward(self, states: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Return the next states in the shape of ``states``, (sentences, places, width).

        ``keys`` and ``values`` are those of the source.
        """
        around = self.around_attention
        states = around.after(states, self.attention(around.before(states), causal=True))
        return self._rest(states, keys, values, mask)

    def step(
        self,
        states: Tensor,
        cache: tuple[Tensor, Tensor],
        place: int,
        memory: tuple[Tensor, Tensor, Tensor | None],
    ) -> Tensor:
        """Compute one place of each hypothesis: ``states`` are (sentences, hypotheses, width).

        Keys and values of this place are written to ``cache``; both are
        (sentences · hypotheses, heads, places, channels).
        """
        around, (sentences, hypotheses, width) = self.around_attention, states.shape
        alone = states.view(sentences * hypotheses, 1, width)
        query, key, value = self.attention.split(around.before(alone))
        cache[0][:, :, place], cache[1][:, :, place] = key[:, :, 0], value[:, :, 0]
        keys, values = (part[:, :, : place + 1] for part in cache)
        read = scaled_dot_product_attention(query, keys, values)
        alone = around.after(alone, self.attention.join_heads(read))
        # The hypotheses of a sentence read one source: they stand beside each other as queries.
        return self._rest(alone.view(sentences, hypotheses, width), *memory)

    def _rest(self, states: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        around = self.around_source
        states = around.after(states, self.source(around.before(states), keys, values, mask))
        around = self.around_feed_forward
        return around.after(states, self.feed_forward(around.before(states)))


class Transformer(nn.Module):
    """Encoder and decoder; maps token numbers to logits."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Parameter(torch.empty(shape.vocabulary, shape.width))
        self.encoder = nn.ModuleList(EncoderLayer(shape) for _ in range(shape.layers))
        self.decoder = nn.ModuleList(DecoderLayer(shape) for _ in range(shape.layers))
        is_pre = shape.norm == "pre"
        self.encoder_norm = nn.LayerNorm(shape.width) if is_pre else nn.Identity()
        self.decoder_norm = nn.LayerNorm(shape.width) if is_pre else nn.Identity()
        nn.init.normal_(self.embedding, std=shape.width**-0.5)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                _initialize(module, parts=module.out_features // shape.width)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the logits of every place of ``target``, given the places before it.

        ``source`` and ``target`` are token numbers, int64 (sentences, places), with PADDING after
        END. The logits are (sentences, places, vocabulary).
        """
        return self.logits(self.decode(shift(target), self.remember(source)))

    def remember(self, source: Tensor) -> Memory:
        """Encode ``source``, int64 (sentences, places)."""
        mask = make_mask(source)
        states = self.embed(source)
        for layer in self.encoder:
            states = layer(states, mask)
        encoded = self.encoder_norm(states)
        both = [layer.source.make_keys_and_values(encoded) for layer in _list_layers(self.decoder)]
        return Memory(tuple(k for k, _ in both), tuple(v for _, v in both), mask)

    def decode(self, tokens: Tensor, memory: Memory) -> Tensor:
        """Return the states after ``tokens``, (sentences, places, width).

        ``tokens`` are int64 (sentences, places), END first.
        """
        states = self.embed(tokens)
        for layer, keys, values in zip(self.decoder, memory.keys, memory.values, strict=True):
            states = layer(states, keys, values, memory.mask)
        return states

    def embed(self, tokens: Tensor, first_place: int = 0) -> Tensor:
        """Embed tokens (sentences, places) with their positions, (sentences, places, width)."""
        width = self.shape.width
        states = embedding(tokens, self.embedding) * math.sqrt(width)
        states = states + make_positions(first_place, tokens.shape[1], width, tokens.device)
        return dropout(states, self.shape.dropout, self.training)

    def step(
        self, tokens: Tensor, place: int, caches: Sequence[tuple[Tensor, Tensor]], memory: Memory
    ) -> Tensor:
        """Return the logits of the next place, (sentences, hypotheses, vocabulary).

        ``tokens`` (sentences, hypotheses) stand at ``place``.
        """
        sentences, hypotheses = tokens.shape
        states = self.embed(tokens.view(-1, 1), place).view(sentences, hypotheses, -1)
        for at, layer in enumerate(_list_layers(self.decoder)):
            states = layer.step(
                states, caches[at], place, (memory.keys[at], memory.values[at], memory.mask)
            )
        return self.logits(states)

    def start_decoding(self, source: Tensor, hypotheses: int, places: int) -> "CachedDecoding":
        """Encode ``source``, (sentences, places), for hypotheses of ``places`` tokens at most."""
        return CachedDecoding(self, self.remember(source), hypotheses, places)

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits of all tokens, (…, vocabulary), for decoder states (…, width)."""
        return linear(self.decoder_norm(states), self.embedding)


def make_mask(source: Tensor) -> Tensor | None:
    """Return where ``source``, int64 (sentences, places), has tokens: (sentences, 1, 1, places).

    It is None if they are known to be everywhere: without a mask attention is faster.
    """
    is_token = source != PADDING
    # Only a processor can branch on values at no cost: a compiled graph cannot, and the host would
    # wait for an accelerator in every pass.
    can_look = source.device.type == "cpu" and not torch.compiler.is_compiling()
    is_full = can_look and bool(is_token.all())
    return None if is_full else is_token[:, None, None, :]


def make_positions(first: int, count: int, width: int, device: torch.device) -> Tensor:
    """Return sines of ``width`` / 2 wavelengths, then their cosines, (count, width)."""
    half = width // 2
    places = torch.arange(first, first + count, dtype=torch.float32, device=device)
    steps = torch.arange(half, dtype=torch.float32, device=device) / max(1, half - 1)
    angles = places[:, None] * torch.exp(-math.log(LONGEST_WAVE) * steps)
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def _list_layers(stack: nn.ModuleList) -> list[DecoderLayer]:
    return list(stack)  # type: ignore[arg-type]


def _initialize(layer: nn.Linear, parts: int) -> None:
    """Initialise with Glorot's uniform distribution, each matrix of a stored group by itself."""
    is_several = layer.bias is None and parts > 1
    for weights in layer.weight.chunk(parts) if is_several else [layer.weight]:
        nn.init.xavier_uniform_(weights)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


class CachedDecoding:
    """A decoder with the keys and values of the tokens so far, and those of the sources.

    The hypotheses of a sentence read its source as queries beside each other, so nothing of the
    source is copied.
    """

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
