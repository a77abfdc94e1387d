"""gnmt: the network against a plain one, loops against the library, the search against targets."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from cepheid.benchmarks.gnmt.broken import VARIANTS, Bottleneck, Forgetful
from cepheid.benchmarks.gnmt.model import GNMT, Shape, Variant
from cepheid.benchmarks.gnmt.plain import Peer
from cepheid.benchmarks.gnmt.recurrent import Form, HoistedLoop, Recurrent, reverse
from cepheid.benchmarks.gnmt.task import compute_rate, read_shape
from cepheid.measure.engine.turns import make_plain_task
from cepheid.measure.studies.speed import gnmt as speed
from cepheid.reference.data.sentences.batches import END, PADDING, Tokens
from cepheid.reference.optim.schedules import exponential_warmup_then_steps
from cepheid.reference.run.config import RunConfig, configure
from cepheid.reference.run.execution import add_switches
from cepheid.reference.torch.translation.beam_search import shift
from cepheid.reference.torch.workload import Update
from cepheid.rules import definition
from cepheid.rules.errors import UserError
from tests import tasks
from tests.reference.torch.translation.slow_search import draw_sentences

pytest.importorskip("sentencepiece", reason="needs the extra translation")

FULL, MINI = (definition.load("gnmt", scale) for scale in ("full", "mini"))
SMALL = Shape(vocabulary=23, width=8, layers=4)
TRAIN = 64


def network_of(
    kind: Callable[[Shape], Any] = GNMT, variant: Variant = "gnmt_v2", seed: int = 1
) -> Any:
    torch.manual_seed(seed)
    return kind(dataclasses.replace(SMALL, variant=variant)).eval()


# One layer ---------------------------------------------------------------------------------------


def run_layer(form: Form) -> list[Tensor]:
    """Outputs, last state and all gradients of a layer that goes on from a state."""
    torch.manual_seed(2)
    layer = Recurrent(3, 5)
    layer.form = form
    inputs, last, cell = torch.randn(7, 2, 3), torch.randn(1, 2, 5), torch.randn(1, 2, 5)
    leaves = [one.requires_grad_() for one in (inputs, last, cell)]
    outputs, (after, cell_after) = layer(inputs, (last, cell))
    (outputs.sin().sum() + after.sum() + cell_after.cos().sum()).backward()
    leaves += list(layer.parameters())
    return [outputs, after, cell_after, *(leaf.grad for leaf in leaves if leaf.grad is not None)]


@pytest.mark.parametrize("form", ["hoisted", "plain"])
def test_every_form_computes_the_same_layer(form: Form) -> None:
    expected, found = run_layer("library"), run_layer(form)
    assert len(expected) == len(found) == 10
    torch.testing.assert_close(expected, found, rtol=1e-5, atol=1e-6)


def test_the_hoisted_loop_has_the_gradients_of_differences() -> None:
    torch.manual_seed(3)
    shapes = ((3, 2, 2), (1, 2, 3), (1, 2, 3), (12, 2), (12, 3), (12,))
    arguments = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    assert torch.autograd.gradcheck(HoistedLoop.apply, arguments)


def test_sentences_are_reversed_and_their_padding_stays() -> None:
    states = torch.arange(8.0).view(4, 2, 1)
    assert reverse(states, torch.tensor([4, 2]))[:, :, 0].t().tolist() == [
        [6, 4, 2, 0],
        [3, 1, 5, 7],
    ]


# The network -------------------------------------------------------------------------------------


def test_initial_weights_grow_as_the_width_shrinks() -> None:
    assert Shape(9, 1024, 4).initial_range == pytest.approx(0.1)
    for name, weights in GNMT(Shape(500, 64, 3)).named_parameters():
        if name == "attention.scale":
            assert float(weights.detach()) == pytest.approx(1 / 8)
        elif name == "attention.key.bias":
            assert not weights.any()
        else:
            assert 0.3 < float(weights.detach().abs().max()) <= 0.4, name


def copy_to_peer(ours: GNMT) -> Peer:
    """The plain network with our weights."""
    theirs = Peer(ours.shape).eval()
    pairs: list[tuple[Any, Any]] = [(theirs.both, ours.forwards), (theirs.asking, ours.asking)]
    pairs += [*zip(theirs.encoder, ours.encoder, strict=True)]
    pairs += [*zip(theirs.decoder, ours.decoder, strict=True)]
    with torch.no_grad():
        for there, here in pairs:
            for name, weights in here.named_parameters():
                cell = name.removesuffix("_l0")
                getattr(there, name if hasattr(there, name) else cell).copy_(weights)
        for name, weights in ours.backwards.named_parameters():
            getattr(theirs.both, f"{name}_reverse").copy_(weights)
        for name in ("direction", "scale"):
            getattr(theirs, name).copy_(getattr(ours.attention, name))
        theirs.bias.copy_(ours.attention.key.bias)
    theirs.embedding.load_state_dict(ours.embedding.state_dict())
    theirs.classifier.load_state_dict(ours.classifier.state_dict())
    theirs.query.load_state_dict(ours.attention.query.state_dict())
    theirs.key.weight.data.copy_(ours.attention.key.weight)
    return theirs


def test_forward_values_are_those_of_packed_sequences_and_cells() -> None:
    ours = network_of()
    source, target = draw_sentences(5, 9, 3), draw_sentences(7, 2, 8, seed=1)
    with torch.no_grad():
        here, there = ours(source, target), copy_to_peer(ours)(source, target)
    is_token = target != PADDING
    assert float(here.std()) > 0.1
    assert torch.allclose(here[is_token], there[is_token], atol=1e-5)


def test_input_feeding_feeds_the_last_answer() -> None:
    """Without the weights of the answers it is the usual network."""
    usual, feeding = network_of(), network_of(variant="input_feeding")
    weights = usual.state_dict()
    name = "asking.weight_ih_l0"
    weights[name] = torch.cat([weights[name], torch.zeros_like(weights[name])], dim=1)
    feeding.load_state_dict(weights)
    source, target = draw_sentences(5, 9), draw_sentences(7, 4, seed=1)
    assert torch.allclose(usual(source, target), feeding(source, target), atol=1e-6)
    feeding.asking.weight_ih_l0.data[:, SMALL.width :] = 0.5
    here, there = usual(source, target), feeding(source, target)
    assert torch.allclose(here[:, 0], there[:, 0], atol=1e-6)
    assert not torch.allclose(here[:, 1], there[:, 1], atol=1e-3)


# The task ----------------------------------------------------------------------------------------


def small_config(data_root: Path, *overrides: str) -> RunConfig:
    chosen = add_switches(MINI, {"recurrent": get_args(Form)})  # as its study does
    settings = ("global_batch_size=16", *overrides)
    return tasks.configure_small(chosen, data_root, *settings, samples=(TRAIN, tasks.EVALUATION))


def test_the_loss_is_a_sum_over_tokens_and_a_mean_over_sentences(data_root: Path) -> None:
    task = tasks.build(small_config(data_root, "pass_tokens=512"))
    task.model.train()
    with torch.no_grad():
        total = 0.0
        for piece in task.next_pieces():
            source, target = piece.inputs, piece.targets
            shares = task.model(source, target).log_softmax(-1)
            right = shares.gather(2, target[:, :, None])[:, :, 0]
            smoothed = 0.9 * right + 0.1 * shares.mean(-1)
            total -= float(smoothed[target != PADDING].sum())
    assert float(task.step()) == pytest.approx(total / 16, rel=1e-5)


def test_gradients_are_clipped_together(data_root: Path) -> None:
    task = tasks.build(small_config(data_root))
    tasks.run_backward(task)
    parameters = list(task.model.parameters())
    before = [p.grad.clone() for p in parameters if p.grad is not None]
    norm = float(torch.stack([one.norm() for one in before]).norm())
    assert norm > 10
    groups = task.optimizer.param_groups
    task.clip(groups, 2 * norm)
    assert all(torch.equal(p.grad, one) for p, one in zip(parameters, before, strict=True))
    task.workload.prepare_update(task.shape, Update(16, groups, task.clip))
    for parameter, one in zip(parameters, before, strict=True):
        assert torch.allclose(parameter.grad, one * 5 / norm, rtol=1e-4)


def test_learning_rates_are_those_of_the_reference_and_stay_without_an_interval() -> None:
    """NVIDIA's at batch 2,048: 200 steps, decays at 6,453 and after each 809 steps more."""
    values = read_shape(configure(FULL)).values
    steps = (0, 99, 199, 6452, 6453, 6453 + 808, 6453 + 809, 6453 + 3 * 809, 10**5)
    found = [compute_rate(values, 2048 * (step + 1)) / 2e-3 for step in steps]
    expected = [0.01 ** (199 / 200), 0.1, 1, 1, 0.5, 0.5, 0.25, 0.0625, 0.0625]
    assert found == pytest.approx(expected)
    rate = exponential_warmup_then_steps(
        10**6, peak=2.0, warmup_samples=0, remain_samples=9, interval_samples=0, factor=0.5,
        decays=4,
    )  # fmt: skip
    assert rate == 2.0


def test_an_evaluation_translates_without_targets(data_root: Path) -> None:
    """Other targets change the loss, which is computed with them, and no translation."""
    task = tasks.build_and_train(small_config(data_root), samples=32)
    sources = [piece.inputs for piece in task.next_pieces()]
    first, before, pairs = list(map(task.predict, sources)), task.evaluate(), task.data.pairs
    values = pairs.target.values.copy()
    values[values > END] = 5
    task.data.use(dataclasses.replace(pairs, target=Tokens(values, pairs.target.ends)))
    after = task.evaluate()
    assert after["bleu"] == before["bleu"]
    assert after["loss"] != before["loss"]
    assert first == list(map(task.predict, sources))


@pytest.mark.parametrize("form", ["hoisted", "plain"])
def test_forms_lead_to_the_same_weights(data_root: Path, form: str) -> None:
    usual, other = (
        tasks.build_and_train(small_config(data_root, f"recurrent={kind}"), samples=32)
        for kind in ("library", form)
    )
    for name, weights in usual.model.state_dict().items():
        assert torch.allclose(weights, other.model.state_dict()[name], atol=2e-4), name


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["input_hosts=2"], r"input_hosts=2.*leave it out"),
        (["input_hosts=16", "bucketing=local", "global_batch_size=8"], r"8 sentences.*fewer hosts"),
    ],
)
def test_hosts_that_make_no_sense(data_root: Path, overrides: list[str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        tasks.create(small_config(data_root, *overrides))


def test_pictures_show_translations_and_progress(data_root: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra site")
    task = tasks.build_and_train(small_config(data_root), samples=32)
    task.evaluate()
    *alignments, curve = task.pictures().axes
    assert all("reference: " in place.get_title() for place in alignments)
    image: Any = alignments[0].images[0].get_array()
    assert image.sum(axis=1).tolist() == pytest.approx([1.0] * len(image), abs=1e-4)
    samples: Any = curve.lines[0].get_xdata()
    assert list(samples) == [32]


# Broken variants ---------------------------------------------------------------------------------


@torch.no_grad()
def test_without_attention_the_source_is_one_vector() -> None:
    network, source = network_of(Bottleneck), draw_sentences(5, 3)
    _, attention = network.start_decoding(source, 1, 4).step(torch.full((2, 1), END))
    assert attention[:, 0].tolist()[1] == pytest.approx([1 / 3] * 3 + [0, 0])


@torch.no_grad()
def test_a_forgetful_decoder_sees_the_last_token_alone() -> None:
    network, source, target = network_of(Forgetful), draw_sentences(4), draw_sentences(6, seed=1)
    changed = target.clone()
    changed[0, 2] = 3 + (int(target[0, 2]) - 2) % 20
    here, there = network(source, target)[0], network(source, changed)[0]
    same = [torch.allclose(one, other) for one, other in zip(here, there, strict=True)]
    assert same == [True, True, True, False, True, True]
    decoding = network.start_decoding(source, 1, 6)
    for place, before in enumerate(shift(target).unbind(1)):
        logits, _ = decoding.step(before[:, None])
        assert torch.allclose(logits[0, 0], here[place], atol=1e-5)


def test_reversed_targets_end_with_their_end(data_root: Path) -> None:
    config = small_config(data_root)
    makes = (tasks.create, VARIANTS["reversed_targets"])
    usual, backwards = (tasks.build(config, make=make).data.pairs.target for make in makes)
    for row in (0, TRAIN - 1):
        *tokens, end = usual.row(row).tolist()
        assert backwards.row(row).tolist() == [*reversed(tokens), end]
    assert usual.row(TRAIN).tolist() == backwards.row(TRAIN).tolist()


# Speed -------------------------------------------------------------------------------------------


def test_what_it_is_timed_against_trains_on_random_batches(data_root: Path) -> None:
    task = tasks.build(small_config(data_root))
    plain = make_plain_task(tasks.make_subject(task.config, task, "global_batch_size=16"))
    assert plain.data.batches.order.bucketing.input == "random"
    assert isinstance(plain.model, Peer)
    assert plain.step().isfinite()


@pytest.mark.slow  # a dozen sides are timed
def test_speed_of_what_the_paper_did(data_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "STEPS", 1)
    monkeypatch.setattr(speed, "BATCHES", 1)
    monkeypatch.setattr(speed, "LAYER_WIDTH", 8)
    subject = tasks.make_subject(small_config(data_root), None, "global_batch_size=16")
    own = ("recurrent", "layers", "bucketing", "variants")
    rows = [row for key in own for row in speed.MEASUREMENTS[key](subject).rows]
    assert sum("times as fast" in row.result for row in rows) == 11
    assert sum("of the places" in row.result for row in rows) == len(speed.BUCKETINGS)
