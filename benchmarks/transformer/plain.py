"""`torch.nn.Transformer` in a plain eager loop: what the reference is timed against.

Each rank's share is one padded block, attention and padding are masked as PyTorch's tutorial does
it, Adam is torch's default. ``MARIAN`` is the same with the `MarianMTModel` of
`transformers`, a network with more biases.
"""

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import linear, pad

from cepheid.benchmarks.transformer.model import Shape, make_positions
from cepheid.benchmarks.transformer.task import WORKLOAD as REFERENCE
from cepheid.reference.data.sentences.batches import END, PADDING
from cepheid.reference.torch.translation.variants import simplify
from cepheid.rules.errors import UserError


class Peer(nn.Module):
    """torch's network with one embedding for both sides and the logits."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width, padding_idx=PADDING)
        nn.init.normal_(self.embedding.weight, std=shape.width**-0.5)
        self.network = nn.Transformer(
            d_model=shape.width,
            nhead=shape.heads,
            num_encoder_layers=shape.layers,
            num_decoder_layers=shape.layers,
            dim_feedforward=shape.feed_forward,
            dropout=shape.dropout,
            batch_first=True,
            norm_first=shape.norm == "pre",
        )

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the logits of every place of ``target``, (sentences, places, vocabulary)."""
        before = pad(target[:, :-1], (1, 0), value=END)
        later = self.network.generate_square_subsequent_mask(target.shape[1], target.device)
        decoded = self.network(
            self._embed(source),
            self._embed(before),
            tgt_mask=later < 0,
            src_key_padding_mask=source == PADDING,
            tgt_key_padding_mask=before == PADDING,
            memory_key_padding_mask=source == PADDING,
            tgt_is_causal=True,
        )
        return linear(decoded, self.embedding.weight)

    def _embed(self, tokens: Tensor) -> Tensor:
        width = self.shape.width
        states: Tensor = self.embedding(tokens) * width**0.5
        return states + make_positions(0, tokens.shape[1], width, tokens.device)


class Marian(nn.Module):
    """The network of `transformers` with the same sizes."""

    def __init__(self, shape: Shape, longest: int = 1024) -> None:
        super().__init__()
        try:
            from transformers import MarianConfig, MarianMTModel
        except ImportError as error:
            raise UserError(
                "transformers is not installed, and its MarianMTModel is one of those that the "
                "step is compared with: pip install transformers"
            ) from error
        sizes: dict[str, Any] = {
            f"{side}_{what}": value
            for side in ("encoder", "decoder")
            for what, value in (
                ("layers", shape.layers),
                ("attention_heads", shape.heads),
                ("ffn_dim", shape.feed_forward),
            )
        }
        self.network = MarianMTModel(
            MarianConfig(
                vocab_size=shape.vocabulary,
                d_model=shape.width,
                max_position_embeddings=longest,
                activation_function="relu",
                dropout=shape.dropout,
                pad_token_id=PADDING,
                eos_token_id=END,
                decoder_start_token_id=END,
                forced_eos_token_id=None,
                **sizes,
            )
        )

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the logits of every place of ``target``, (sentences, places, vocabulary)."""
        before = pad(target[:, :-1], (1, 0), value=END)
        logits: Tensor = self.network(
            input_ids=source, attention_mask=source != PADDING, decoder_input_ids=before
        ).logits
        return logits


WORKLOAD = simplify(REFERENCE).vary(make_network=lambda shape, norms: Peer(shape.sizes))
"""The task with torch's network; for compile=off and the precision of the reference."""
MARIAN = WORKLOAD.vary(make_network=lambda shape, norms: Marian(shape.sizes))
"""The same with the network of `transformers`."""
