"""The measurements that `cepheid measure speed transformer` adds: other networks, and decoding.

All sides compute eagerly in float32, on the same sentences. Tokens are counted without padding.
"""

import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from cepheid.benchmarks.transformer import plain
from cepheid.benchmarks.transformer.model import Transformer
from cepheid.measure.engine.subject import (
    Measure,
    Measurement,
    Row,
    Sides,
    Subject,
    describe_comparison,
)
from cepheid.measure.engine.turns import Comparison, Timing, time_steps
from cepheid.measure.studies.sharing import exchange, shared_models
from cepheid.measure.studies.speed_by_benchmark.translation import (
    compare_searches,
    make_eager_task,
    train_to_translate,
)
from cepheid.reference.data.wmt.vocabulary import END

STEPS = 3
ONE_PASS = "pass_tokens=32768"
TORCH = "torch.nn.Transformer"


def compare_networks(subject: Subject) -> Measurement:
    """Compare a training step with torch.nn.Transformer and MarianMTModel, same sentences."""
    ours, at_once = make_eager_task(subject), make_eager_task(subject, ONE_PASS)
    torchs = make_eager_task(subject, source=plain)
    pairs = [
        (TORCH, torchs, ours),
        (f"{TORCH}, the reference in one pass too", torchs, at_once),
    ]
    if importlib.util.find_spec("transformers"):
        marian = make_eager_task(subject, source=plain.create_marian)
        pairs.append(("MarianMTModel", marian, ours))
    rows, facts = [], {}
    for name, peer, reference in pairs:
        peer.samples = reference.samples = 0
        tokens = reference.tokens
        slow, fast = (partial(time_steps, task, STEPS) for task in (peer, reference))
        what = f"step of {ours.config.global_batch_size} sentences"
        compared = subject.compare(Sides(what, name, slow, fast, timed=True))
        assert peer.samples == reference.samples
        tokens_of_turn = (reference.tokens - tokens) / (subject.rounds + 1) / STEPS
        rows.append(_describe_rates(compared, tokens_of_turn))
        facts[name] = compared.as_json()
    return Measurement(rows, facts)


def compare_decoding(subject: Subject) -> Measurement:
    """Compare the beam search with one without a cache, and with one sentence at a time."""
    ours = make_eager_task(subject)
    source = train_to_translate(ours)
    lengths = [len(tokens) + 1 for tokens in ours.predict(source)]  # END too
    slow = partial(translate_without_cache, ours.model, source, max(lengths))
    describe = partial(_describe_rates, tokens=sum(lengths))
    return compare_searches(
        subject, ours, source, {"without a cache, as many steps": slow}, describe
    )


@torch.no_grad()
def translate_without_cache(network: Transformer, source: Tensor, steps: int) -> Tensor:
    """Decode ``steps`` tokens of four hypotheses per sentence, the likeliest each time.

    ``source`` has shape (sentences, places). As in the search, sources are encoded once and only
    the last place gets logits; the choice between hypotheses is left out. Returns tokens of shape
    (4 · sentences, 1 + steps), END first.
    """
    hypotheses = torch.arange(len(source)).repeat_interleave(4)
    memory = network.remember(source).of(hypotheses)
    target = torch.full((len(hypotheses), 1), END)
    for _ in range(steps):
        last = network.decode(target, memory)[:, -1:]
        target = torch.cat([target, network.logits(last).argmax(-1)], dim=1)
    return target


def _describe_rates(compared: Comparison, tokens: float) -> Row:
    """Return the line for a comparison in which each side computes ``tokens`` tokens at a time."""

    def format_rate(timing: Timing) -> str:
        slowest, fastest = (tokens / seconds for seconds in timing.quartiles_seconds[::-1])
        middle = tokens / timing.median_seconds
        return f"{middle:,.0f} tokens/s ({slowest:,.0f} to {fastest:,.0f})"

    return replace(
        describe_comparison(compared),
        reference=format_rate(compared.reference),
        against=f"{compared.baseline.label}: {format_rate(compared.baseline)}",
    )


MEASUREMENTS: Mapping[str, Mapping[str, Measure]] = {
    "transformer": {
        "networks": compare_networks,
        "decoding": compare_decoding,
        **exchange.MEASUREMENTS,
        **shared_models.MEASUREMENTS,
    }
}
ON_REQUEST = tuple(MEASUREMENTS["transformer"])
