"""The matrices of the Transformer that ranks share: those of attention and feed-forward."""

from cepheid.benchmarks.transformer.model import Transformer
from cepheid.reference.torch.parallel.plan import TensorPlan


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
