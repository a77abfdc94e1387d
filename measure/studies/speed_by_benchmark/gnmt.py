"""The measurements that `cepheid measure speed gnmt` adds: what the TPU paper did, on and off.

All sides compute eagerly in float32. Source: Kumar et al. 2019 (arXiv:1909.09756), section 3.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import cast, get_args

import torch
from torch import Tensor

from cepheid.benchmarks.gnmt.model import GNMT, Memory, RecurrentDecoding
from cepheid.benchmarks.gnmt.recurrent import Form, Recurrent
from cepheid.measure.engine.subject import Measure, Measurement, Row, Sides, Subject
from cepheid.measure.engine.turns import time_steps
from cepheid.measure.studies.sharing import exchange
from cepheid.measure.studies.speed_by_benchmark.translation import (
    compare_searches,
    make_eager_task,
    train_to_translate,
)
from cepheid.reference.data.wmt import batch_order
from cepheid.reference.data.wmt.batch_order import BatchOrder, Bucketing
from cepheid.reference.run.execution import add_switches
from cepheid.reference.torch.translation.beam_search import translate

STEPS, BATCHES, RANKS = 16, 256, 4
LAYER_WIDTH, LAYER_PLACES, LAYER_SENTENCES = 1024, 25, (1, 4, 16)
BUCKETINGS = {
    "at random": Bucketing(),
    "windows of 16 batches, one for all": Bucketing(batch_order.GLOBAL, 16),
    "windows of 64 batches, one for all": Bucketing(batch_order.GLOBAL, 64),
    "windows of 16 batches, each of 4 hosts its own": Bucketing(batch_order.LOCAL, 16, RANKS),
    "windows of 16 batches, 4 hosts in turn": Bucketing(batch_order.ROUND_ROBIN, 16, RANKS),
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
    measured = []
    for side, baseline in pairs:
        what = f"step of {subject.config.global_batch_size} sentences, {side}"
        slow, fast = (partial(time_steps, tasks[each], STEPS) for each in (baseline, side))
        tasks[side].samples = tasks[baseline].samples = 0
        sides = Sides(what, baseline, slow, fast, timed=True)
        measured.append((f"{side} against {baseline}", subject.measure(sides)))
    rows = [row for _, measurement in measured for row in measurement.rows]
    return Measurement(rows, {name: measurement.facts for name, measurement in measured})


def compare_layers(subject: Subject) -> Measurement:
    """Compare the forms of one layer of the published width, forward and backward.

    The fewer sentences a rank has, the more hoisting brings: the products of a step then wait for
    the weights.
    """
    all_sides = {}
    for sentences in LAYER_SENTENCES:
        inputs = torch.randn(LAYER_PLACES, sentences, LAYER_WIDTH)
        for form, baseline in (("hoisted", "plain"), ("library", "plain")):
            what = (
                f"layer of {LAYER_WIDTH} units, {LAYER_PLACES} places of {sentences} sentences, "
                f"{form}"
            )
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
    lengths = ready.batches.order.lengths
    rows, facts = list(measured.rows), {"steps": measured.facts}
    for name, bucketing in BUCKETINGS.items():
        order = BatchOrder(lengths, 1, RANKS * ready.config.global_batch_size, bucketing)
        padding = batch_order.measure_padding(order, RANKS, BATCHES)
        facts[name] = {"padding": padding.share, "with_waiting": padding.share_with_waiting}
        text = (
            f"{padding.share:.1%} of the places; {padding.share_with_waiting:.1%} if every rank "
            "waits for the longest sentence of all"
        )
        what = f"padding of {RANKS} ranks, {order.batch} sentences in a global batch"
        rows.append(Row(what, text, name))
    return Measurement(rows, facts)


def compare_decoding(subject: Subject) -> Measurement:
    """Compare the search with one that projects its keys anew, and with single sentences."""
    ours = make_eager_task(subject)
    source = train_to_translate(ours)
    forgetful = partial(translate, ForgetfulDecoder(ours.model), source, ours.search)
    return compare_searches(
        subject, ours, source, {"keys projected anew for each token": forgetful}
    )


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


MEASUREMENTS: Mapping[str, Mapping[str, Measure]] = {
    "gnmt": {
        "recurrent": compare_forms,
        "layers": compare_layers,
        "bucketing": compare_bucketing,
        "variants": compare_variants,
        "decoding": compare_decoding,
        **exchange.MEASUREMENTS,
    }
}
ON_REQUEST = tuple(MEASUREMENTS["gnmt"])
