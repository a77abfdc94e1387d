"""The measurements that `cepheid measure speed gnmt` adds: what the TPU paper did, on and off.

All sides compute eagerly in float32. Source: Kumar et al. 2019 (arXiv:1909.09756), section 3.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import cast, get_args

import torch
from torch import Tensor

from cepheid.benchmarks.gnmt import task
from cepheid.benchmarks.gnmt.model import GNMT, Memory, RecurrentDecoding
from cepheid.benchmarks.gnmt.recurrent import Form, Recurrent
from cepheid.measure.engine.subject import (
    Measure,
    Measurement,
    Row,
    Subject,
    describe_comparison,
    make_ready_task,
)
from cepheid.measure.engine.turns import time_steps
from cepheid.measure.studies.sharing import exchange
from cepheid.measure.studies.speed_by_benchmark import translation as speed
from cepheid.measure.studies.speed_by_benchmark.translation import (
    configure_eager,
    time_once,
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


def compare_forms(subject: Subject) -> Measurement:
    """Compare a step with LSTMs of the library, with hoisted loops and with plain loops."""
    definition = add_switches(subject.config.definition, {"recurrent": get_args(Form)})
    subject = replace(subject, config=replace(subject.config, definition=definition))
    forms: Mapping[str, list[str]] = {
        "library": [],
        "hoisted": ["recurrent=hoisted"],
        "plain": ["recurrent=plain"],
    }
    return _compare_steps(
        subject, forms, [("hoisted", "plain"), ("library", "plain"), ("library", "hoisted")]
    )


def compare_layers(subject: Subject) -> Measurement:
    """Compare the forms of one layer of the published width, forward and backward.

    The fewer sentences a rank has, the more hoisting brings: the products of a step then wait for
    the weights.
    """
    rows, facts = [], {}
    for sentences in LAYER_SENTENCES:
        inputs = torch.randn(LAYER_PLACES, sentences, LAYER_WIDTH)
        for form, baseline in (("hoisted", "plain"), ("library", "plain")):
            compared = subject.compare(
                f"layer of {LAYER_WIDTH} units, {LAYER_PLACES} places of {sentences} sentences, "
                + form,
                baseline,
                partial(time_once, make_layer_step(baseline, inputs)),
                partial(time_once, make_layer_step(form, inputs)),
            )
            rows.append(describe_comparison(compared))
            facts[f"{form}, {sentences} sentences"] = compared.as_json()
    return Measurement(rows, facts)


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
    ways: Mapping[str, list[str]] = {
        "batches of like lengths": [],
        "batches at random": ["bucketing=random"],
    }
    measured = _compare_steps(subject, ways, [("batches of like lengths", "batches at random")])
    ready = make_ready_task(task.create, configure_eager(subject), subject.ranks)
    lengths = ready.batches.order.lengths
    rows, facts = list(measured.rows), {"steps": measured.facts}
    for name, bucketing in BUCKETINGS.items():
        order = BatchOrder(lengths, 1, RANKS * ready.config.global_batch_size, bucketing)
        padding = batch_order.measure_padding(order, RANKS, BATCHES)
        facts[name] = {"padding": padding.share, "with_waiting": padding.share_with_waiting}
        rows.append(
            Row(
                what=f"padding of {RANKS} ranks, {order.batch} sentences in a global batch",
                reference=name,
                result=f"{padding.share:.1%} of the places; {padding.share_with_waiting:.1%} if "
                "every rank waits for the longest sentence of all",
            )
        )
    return Measurement(rows, facts)


def compare_variants(subject: Subject) -> Measurement:
    """Compare a step of GNMT v2 with one of Google's network, which loops over the attention."""
    variants: Mapping[str, list[str]] = {
        "gnmt_v2": [],
        "input_feeding": ["model_variant=input_feeding"],
    }
    return _compare_steps(subject, variants, [("gnmt_v2", "input_feeding")])


def compare_decoding(subject: Subject) -> Measurement:
    """Compare the search with one that projects its keys anew, and with single sentences."""
    ours = make_ready_task(task.create, configure_eager(subject), subject.ranks)
    source = train_to_translate(ours)
    forgetful = partial(translate, ForgetfulDecoder(ours.model), source, ours.search)
    return speed.compare_decoding(
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


def _compare_steps(
    subject: Subject, ways: Mapping[str, list[str]], pairs: list[tuple[str, str]]
) -> Measurement:
    """Compare steps with different settings, each pair in turns, on the same sentences."""
    tasks = {
        name: make_ready_task(task.create, configure_eager(subject, *settings), subject.ranks)
        for name, settings in ways.items()
    }
    rows, facts = [], {}
    for name, baseline in pairs:
        tasks[name].samples = tasks[baseline].samples = 0
        compared = subject.compare(
            f"step of {subject.config.global_batch_size} sentences, {name}",
            baseline,
            partial(time_steps, tasks[baseline], STEPS),
            partial(time_steps, tasks[name], STEPS),
        )
        rows.append(describe_comparison(compared))
        facts[f"{name} against {baseline}"] = compared.as_json()
    return Measurement(rows, facts)


MEASUREMENTS: Mapping[str, Measure] = {
    "recurrent": compare_forms,
    "layers": compare_layers,
    "bucketing": compare_bucketing,
    "variants": compare_variants,
    "decoding": compare_decoding,
    **exchange.MEASUREMENTS,
}
ON_REQUEST = tuple(MEASUREMENTS)
