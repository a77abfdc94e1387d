"""What `cepheid measure speed gnmt` adds, eagerly in float32.

The switches are those of Kumar et al. 2019 (arXiv:1909.09756), section 3.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast, get_args

import torch
from torch import Tensor

from cepheid.benchmarks.gnmt.recurrent import Form, Recurrent
from cepheid.measure.engine.turns import Measure, Measurement, Row, Sides, Subject
from cepheid.measure.studies.speed.hosts import compare_hosts
from cepheid.reference.data.sentences import batches
from cepheid.reference.data.sentences.batches import BatchOrder, Bucketing
from cepheid.reference.run.execution import add_switches

EAGER = ("precision=fp32", "compile=off")
STEPS, BATCHES, RANKS = 16, 256, 4
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


def make_eager_task(subject: Subject, *settings: str) -> Any:
    """Return the task of the reference, ready, with further settings."""
    config = replace(subject, overrides=[*EAGER, *subject.overrides]).configure(*settings)
    return subject.make_task(config)


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


MEASUREMENTS: Mapping[str, Measure] = {
    "recurrent": compare_forms,
    "layers": compare_layers,
    "bucketing": compare_bucketing,
    "variants": compare_variants,
    "hosts": compare_hosts,
}
