"""What `cepheid measure speed` adds for gnmt and the transformer, eagerly in float32.

Tokens are counted without padding. The switches of gnmt are those of Kumar et al. 2019
(arXiv:1909.09756), section 3.
"""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast, get_args

import numpy as np
import torch
from torch import Tensor

from cepheid.benchmarks.gnmt.model import GNMT, Memory, RecurrentDecoding
from cepheid.benchmarks.gnmt.recurrent import Form, Recurrent
from cepheid.benchmarks.transformer import plain
from cepheid.benchmarks.transformer.model import Transformer
from cepheid.measure.engine import turns
from cepheid.measure.engine.turns import Comparison, Measure, Measurement, Row, Sides, Subject
from cepheid.measure.studies.speed import sharing
from cepheid.reference.data.sentences import batches
from cepheid.reference.data.sentences.batches import (
    END,
    PADDING,
    BatchOrder,
    Bucketing,
    pad,
    sort_by_length,
)
from cepheid.reference.run.execution import add_switches
from cepheid.reference.torch.translation.beam_search import translate
from cepheid.rules.definition import Block

SENTENCES = 32  # of a search
EAGER = ("precision=fp32", "compile=off")
STEPS, NETWORK_STEPS, BATCHES, RANKS = 16, 3, 256, 4
LAYER_WIDTH, LAYER_PLACES, LAYER_SENTENCES = 1024, 25, (1, 4, 16)
BUCKETINGS = {
    "at random": Bucketing(),
    "windows of 16 batches, one for all": Bucketing(batches.GLOBAL, 16),
    "windows of 64 batches, one for all": Bucketing(batches.GLOBAL, 64),
    "windows of 16 batches, each of 4 hosts its own": Bucketing(batches.LOCAL, 16, RANKS),
    "windows of 16 batches, 4 hosts in turn": Bucketing(batches.ROUND_ROBIN, 16, RANKS),
}
# Of each measurement of steps: the settings of the sides, and the pairs that are compared.
STEP_SIDES: Mapping[str, tuple[Mapping[str, str], Sequence[tuple[str, str]]]] = {
    "recurrent": (
        {"library": "", "hoisted": "recurrent=hoisted", "plain": "recurrent=plain"},
        [("hoisted", "plain"), ("library", "plain"), ("library", "hoisted")],
    ),
    "bucketing": (
        {"batches of like lengths": "", "batches at random": "bucketing=random"},
        [("batches of like lengths", "batches at random")],
    ),
    "variants": (
        {"gnmt_v2": "", "input_feeding": "model_variant=input_feeding"},
        [("gnmt_v2", "input_feeding")],
    ),
}
ONE_PASS = "pass_tokens=32768"
TORCH = "torch.nn.Transformer"


def make_eager_task(subject: Subject, *settings: str, source: Any = None) -> Any:
    """Return a task that is ready, with further settings, by default that of the reference."""
    config = replace(subject, overrides=[*EAGER, *subject.overrides]).configure(*settings)
    return subject.make_task(config, source)


def compare_forms(subject: Subject) -> Measurement:
    """Compare a step with LSTMs of the library, with hoisted loops and with plain loops."""
    definition = add_switches(subject.config.definition, {"recurrent": get_args(Form)})
    config = replace(subject.config, definition=definition)
    return _compare_steps(replace(subject, config=config), "recurrent")


def compare_variants(subject: Subject) -> Measurement:
    """Compare a step of GNMT v2 with one of Google's network, which loops over the attention."""
    return _compare_steps(subject, "variants")


def _compare_steps(subject: Subject, name: str) -> Measurement:
    """Compare steps with different settings, each pair in turns, on the same sentences."""
    settings, pairs = STEP_SIDES[name]
    tasks = {side: make_eager_task(subject, *text.split()) for side, text in settings.items()}
    measured = {}
    for side, baseline in pairs:
        what = f"step of {subject.config.global_batch_size} sentences, {side}"
        tasks[side].samples = tasks[baseline].samples = 0
        sides = Sides.of_steps(what, baseline, tasks[baseline], tasks[side], STEPS)
        measured[f"{side} against {baseline}"] = subject.measure(sides)
    rows = [row for measurement in measured.values() for row in measurement.rows]
    return Measurement(rows, {name: each.facts for name, each in measured.items()})


def compare_layers(subject: Subject) -> Measurement:
    """Compare the forms of one layer of the published width, forward and backward.

    The fewer sentences a rank has, the more hoisting brings: the products of a step then wait for
    the weights.
    """
    all_sides = {}
    for sentences in LAYER_SENTENCES:
        inputs = torch.randn(LAYER_PLACES, sentences, LAYER_WIDTH)
        for form, baseline in (("hoisted", "plain"), ("library", "plain")):
            places = f"{LAYER_PLACES} places of {sentences} sentences"
            what = f"layer of {LAYER_WIDTH} units, {places}, {form}"
            slow, fast = (make_layer_step(each, inputs) for each in (baseline, form))
            all_sides[f"{form}, {sentences} sentences"] = Sides(what, baseline, slow, fast)
    return subject.measure_all(all_sides)


def make_layer_step(form: str, inputs: Tensor) -> Callable[[], None]:
    """Return what computes a layer and its gradients for ``inputs``, (places, sentences, width)."""
    layer = Recurrent(inputs.shape[2], LAYER_WIDTH)
    layer.form = cast(Form, form)

    def step() -> None:
        layer.zero_grad()
        layer(inputs)[0].sum().backward()

    return step


def compare_bucketing(subject: Subject) -> Measurement:
    """Compare a step on batches of like lengths with one on batches drawn at random.

    Also count the padding of each bucketing on one rank and on several.
    """
    measured, ready = _compare_steps(subject, "bucketing"), make_eager_task(subject)
    lengths = ready.data.batches.order.lengths
    rows, facts = list(measured.rows), {"steps": measured.facts}
    for name, bucketing in BUCKETINGS.items():
        order = BatchOrder(lengths, 1, RANKS * ready.config.global_batch_size, bucketing)
        padding = batches.measure_padding(order, RANKS, BATCHES)
        facts[name] = {"padding": padding.share, "with_waiting": padding.share_with_waiting}
        text = (
            f"{padding.share:.1%} of the places; {padding.share_with_waiting:.1%} if every rank "
            "waits for the longest sentence of all"
        )
        what = f"padding of {RANKS} ranks, {order.batch} sentences in a global batch"
        rows.append(Row(what, text, name))
    return Measurement(rows, facts)


def compare_networks(subject: Subject) -> Measurement:
    """Compare a training step with torch.nn.Transformer and MarianMTModel, same sentences."""
    ours, at_once = make_eager_task(subject), make_eager_task(subject, ONE_PASS)
    torchs = make_eager_task(subject, source=plain)
    pairs = [(TORCH, torchs, ours), (f"{TORCH}, the reference in one pass too", torchs, at_once)]
    if importlib.util.find_spec("transformers"):
        marian = make_eager_task(subject, source=plain.MARIAN)
        pairs.append(("MarianMTModel", marian, ours))
    rows, facts = [], {}
    what = f"step of {ours.config.global_batch_size} sentences"
    for name, peer, reference in pairs:
        peer.samples = reference.samples = 0
        compared = subject.compare(Sides.of_steps(what, name, peer, reference, NETWORK_STEPS))
        assert peer.samples == reference.samples
        _, tokens = reference.data.count(reference.samples)
        tokens_of_turn = tokens / (subject.rounds + 1) / NETWORK_STEPS
        rows.append(_describe_rates(compared, tokens_of_turn))
        facts[name] = compared.as_json()
    return Measurement(rows, facts)


def _describe_rates(compared: Comparison, tokens: float) -> Row:
    """Return the line for a comparison in which each side computes ``tokens`` tokens at a time."""

    def format_rate(timing: turns.Timing) -> str:
        slowest, fastest = (tokens / seconds for seconds in timing.quartiles_seconds[::-1])
        middle = tokens / timing.median_seconds
        return f"{middle:,.0f} tokens/s ({slowest:,.0f} to {fastest:,.0f})"

    against = f"{compared.baseline.label}: {format_rate(compared.baseline)}"
    row = turns.describe_comparison(compared)
    return replace(row, reference=format_rate(compared.reference), against=against)


# Search -------------------------------------------------------------------------------------------


def compare_searches_of_gnmt(subject: Subject) -> Measurement:
    """Compare the search with one that projects its keys anew, and with single sentences."""
    ours = make_eager_task(subject)
    source = train_to_translate(ours)
    forgetful = partial(translate, ForgetfulDecoder(ours.model), source, ours.shape.search)
    ways = {"keys projected anew for each token": forgetful}
    return _compare_searches(subject, ours, source, ways)


def compare_searches_of_transformer(subject: Subject) -> Measurement:
    """Compare the beam search with one without a cache, and with one sentence at a time."""
    ours = make_eager_task(subject)
    source = train_to_translate(ours)
    lengths = [len(tokens) + 1 for tokens in ours.predict(source)]  # END too
    slow = partial(translate_without_cache, ours.model, source, max(lengths))
    ways = {"without a cache, as many steps": slow}
    describe = partial(_describe_rates, tokens=sum(lengths))
    return _compare_searches(subject, ours, source, ways, describe)


def train_to_translate(task: Any) -> Tensor:
    """Train a task that is ready for an epoch, and return sentences of its evaluation data.

    An untrained network ends its sentences at once. The result has shape (sentences, places).
    """
    definition = task.config.definition
    train = definition.train_samples
    task.train(Block(1, 0, train), lambda samples: None)
    task.model.eval()
    count = min(SENTENCES, definition.evaluation_samples)
    places = sort_by_length(task.data.pairs.lengths, np.arange(train, train + count))
    return torch.from_numpy(pad(task.data.pairs, places).source)


def _compare_searches(
    subject: Subject,
    task: Any,
    source: Tensor,
    other_ways: Mapping[str, Callable[[], object]],
    describe: Callable[[Comparison], Row] = turns.describe_comparison,
) -> Measurement:
    """Compare the search for translations of ``source`` with other ways, one of them one by one.

    ``source`` has shape (sentences, places); ``describe`` makes the line of a comparison.
    """

    def translate_one_by_one() -> None:
        for row in source:
            task.predict(row[row != PADDING][None])

    ways = {**other_ways, "one sentence at a time": translate_one_by_one}
    what = f"{len(source)} translations"
    all_sides = {
        name: Sides(what, name, work, lambda: task.predict(source)) for name, work in ways.items()
    }
    return subject.measure_all(all_sides, describe)


class ForgetfulDecoder:
    """A decoder that projects the keys of the attention anew for each token."""

    def __init__(self, network: GNMT) -> None:
        self.network = network

    def start_decoding(self, source: Tensor, hypotheses: int, places: int) -> RecurrentDecoding:
        """Encode ``source``, (sentences, places)."""
        return _Forgetful(self.network, self.network.remember(source))


class _Forgetful(RecurrentDecoding):
    def step(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        memory: Memory = self.memory
        values, padding = memory.values.transpose(0, 1), memory.padding[:, 0]
        self.memory = self.network.attention.remember(values, padding)
        return super().step(tokens)


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


MEASUREMENTS: Mapping[str, Mapping[str, Measure]] = {
    "gnmt": {
        "recurrent": compare_forms,
        "layers": compare_layers,
        "bucketing": compare_bucketing,
        "variants": compare_variants,
        "decoding": compare_searches_of_gnmt,
        **sharing.EXCHANGE,
    },
    "transformer": {
        "networks": compare_networks,
        "decoding": compare_searches_of_transformer,
        **sharing.EXCHANGE,
        **sharing.MODELS,
    },
}
ON_REQUEST = tuple({**MEASUREMENTS["gnmt"], **MEASUREMENTS["transformer"]})
