"""`torch.nn.Transformer` in a plain eager loop: what the reference is timed against.

Each rank's share is one padded block, attention and padding are masked as PyTorch's tutorial does
it, Adam is torch's default.
"""

from torch import Tensor, nn
from torch.nn.functional import linear, pad

from cepheid.benchmarks.transformer.model import Shape, make_positions
from cepheid.benchmarks.transformer.task import WORKLOAD as REFERENCE
from cepheid.reference.data.sentences.batches import END, PADDING
from cepheid.reference.torch.translation.variants import simplify


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


WORKLOAD = simplify(REFERENCE).vary(make_network=lambda shape, norms: Peer(shape.sizes))
"""The task with torch's network; for compile=off and the precision of the reference."""
