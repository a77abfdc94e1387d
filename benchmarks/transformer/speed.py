"""The measurements that `cepheid measure speed transformer` adds: other networks, and decoding.

All sides compute eagerly in float32, on the same sentences. Tokens are counted without padding.
"""

import importlib.util
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from benchmarks.transformer import plain, task
from benchmarks.transformer.model import Transformer
from reference.data.wmt.sentence_batches import pad, sort_by_length
from reference.data.wmt.vocabulary import END, PADDING
from reference.measure import exchange, shared_models
from reference.measure.speed import (
    Measure,
    Measurement,
    Row,
    Subject,
    describe_comparison,
    make_ready_task,
)
from reference.measure.turns import Comparison, Timing, time_steps
from reference.run.config import RunConfig, configure
from rules.definition import Block

STEPS, SENTENCES = 3, 32
SETTINGS = ("precision=fp32", "compile=off")
ONE_PASS = "pass_tokens=32768"
TORCH = "torch.nn.Transformer"


def compare_networks(subject: Subject) -> Measurement:
    """Compare a training step with torch.nn.Transformer and MarianMTModel, same sentences."""
    config = _configure(subject)
    ours = make_ready_task(task.create, config, subject.ranks)
    at_once = make_ready_task(task.create, _configure(subject, ONE_PASS), subject.ranks)
    torchs = make_ready_task(plain.create, config, subject.ranks)
    pairs = [
        (TORCH, torchs, ours),
        (f"{TORCH}, the reference in one pass too", torchs, at_once),
    ]
    if importlib.util.find_spec("transformers"):
        marian = make_ready_task(plain.create_marian, config, subject.ranks)
        pairs.append(("MarianMTModel", marian, ours))
    rows, facts = [], {}
    for name, peer, reference in pairs:
        peer.samples = reference.samples = 0
        tokens = reference.tokens
        compared = subject.compare(
            f"step of {config.global_batch_size} sentences",
            name,
            partial(time_steps, peer, STEPS),
            partial(time_steps, reference, STEPS),
        )
        assert peer.samples == reference.samples
        tokens_of_turn = (reference.tokens - tokens) / (subject.rounds + 1) / STEPS
        rows.append(_describe_rates(compared, tokens_of_turn))
        facts[name] = compared.as_json()
    return Measurement(rows, facts)


def compare_decoding(subject: Subject) -> Measurement:
    """Compare the beam search with one without a cache, and with one sentence at a time.

    The network is trained for an epoch first, because an untrained one ends its sentences at once.
    """
    ours = make_ready_task(task.create, _configure(subject), subject.ranks)
    train = subject.config.definition.train_samples
    ours.train(Block(1, 0, train), lambda samples: None)
    count = min(SENTENCES, subject.config.definition.evaluation_samples)
    places = sort_by_length(ours.pairs, np.arange(train, train + count))
    source = torch.from_numpy(pad(ours.pairs, places).source)
    ours.model.eval()
    lengths = [len(tokens) + 1 for tokens in ours.predict(source)]  # END too
    ways: dict[str, Callable[[], object]] = {
        "without a cache, as many steps": partial(
            translate_without_cache, ours.model, source, max(lengths)
        ),
        "one sentence at a time": lambda: [
            ours.predict(row[row != PADDING][None]) for row in source
        ],
    }
    rows, facts = [], {}
    for name, work in ways.items():
        compared = subject.compare(
            f"{count} translations of {min(lengths)} to {max(lengths)} tokens",
            name,
            partial(_time_once, work),
            partial(_time_once, partial(ours.predict, source)),
        )
        rows.append(_describe_rates(compared, sum(lengths)))
        facts[name] = compared.as_json()
    return Measurement(rows, facts)


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


def _configure(subject: Subject, *settings: str) -> RunConfig:
    return configure(
        subject.config.definition,
        overrides=[*SETTINGS, *subject.overrides, *settings],
        data_root=subject.config.data_root,
        seed=1,
    )


def _time_once(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


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


MEASUREMENTS: Mapping[str, Measure] = {
    "networks": compare_networks,
    "decoding": compare_decoding,
    **exchange.MEASUREMENTS,
    "shared": shared_models.compare_shared_models,
}
ON_REQUEST = tuple(MEASUREMENTS)
