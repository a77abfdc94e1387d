"""How ranks share the Transformer: stages of a pipeline, cut between layers, or its matrices.

They share the matrices of attention and feed-forward.
"""

import torch
from torch import Tensor

from cepheid.benchmarks.transformer.model import DecoderLayer, EncoderLayer, Transformer, make_mask
from cepheid.reference.torch.parallel.plan import Stage, TensorPlan
from cepheid.reference.torch.translation.beam_search import shift


class TransformerStage(Stage):
    """The layers from ``first`` to ``last``; those of the encoder come before the decoder's.

    A stage in the encoder passes the states of the source on, one in the decoder those of the
    encoded source and of the target: (sentences, places, width) each. The embedding belongs to the
    first layer of each stack and to the logits.
    """

    def __init__(self, model: Transformer, first: int, last: int) -> None:
        super().__init__()
        self.first, self.last, self.layers = first, last, model.shape.layers
        chosen = [*model.encoder, *model.decoder][first:last]
        self.own = torch.nn.ModuleList(chosen)
        self.whole = (model,)  # not a part of this module
        starts = {0, self.layers}
        if last == 2 * self.layers or starts & set(range(first, last)):
            self.embedding = model.embedding
        if first <= self.layers < last:
            self.encoder_norm = model.encoder_norm
        if last == 2 * self.layers:
            self.decoder_norm = model.decoder_norm

    def describe_inputs(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        """Return what the stage gets for tokens (sentences, places), on the meta device."""
        if self.first == 0:
            return (inputs,)
        (model,) = self.whole
        sources = (inputs,) if self.first <= self.layers else (inputs, targets)
        return tuple(
            torch.empty(*tokens.shape, model.shape.width, device="meta", requires_grad=True)
            for tokens in sources
        )

    def forward(
        self, *states: Tensor, inputs: Tensor, targets: Tensor
    ) -> Tensor | tuple[Tensor, ...]:
        """Return the states after the layers, or the logits, (sentences, places, …) each.

        ``inputs`` and ``targets`` are tokens, (sentences, places).
        """
        (model,) = self.whole
        mask = make_mask(inputs)
        source = states[0] if self.first else model.embed(inputs)
        target = states[1] if len(states) > 1 else None
        for number, layer in enumerate(self.own, self.first):
            if isinstance(layer, EncoderLayer):
                source = layer(source, mask)
                continue
            assert isinstance(layer, DecoderLayer)
            if number == self.layers:
                source, target = model.encoder_norm(source), model.embed(shift(targets))
            target = layer(target, *layer.source.make_keys_and_values(source), mask)
        if target is None:
            return source
        return model.logits(target) if self.last == 2 * self.layers else (source, target)


def cut_stages(model: Transformer, stages: int) -> list[TransformerStage]:
    """Return ``stages`` equal parts of the layers, whose number they divide."""
    size = 2 * model.shape.layers // stages
    return [TransformerStage(model, size * n, size * (n + 1)) for n in range(stages)]


def plan_matrices(model: Transformer) -> TensorPlan:
    """Return how heads and hidden units are shared: each rank computes some of them."""
    columns: dict[str, int] = {}
    rows, inner = [], []
    for stack, layers in (("encoder", model.encoder), ("decoder", model.decoder)):
        for layer in (f"{stack}.{number}" for number in range(len(layers))):
            columns |= {f"{layer}.attention.inputs": 3, f"{layer}.feed_forward.first": 1}
            rows += [f"{layer}.attention.output", f"{layer}.feed_forward.second"]
            inner += [f"{layer}.attention", f"{layer}.feed_forward"]
            if stack == "decoder":
                columns |= {f"{layer}.source.query": 1, f"{layer}.source.inputs": 2}
                rows.append(f"{layer}.source.output")
                inner.append(f"{layer}.source")
    return TensorPlan(columns, rows, inner)
