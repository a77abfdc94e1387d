"""transformer: the network against torch's, the search against a slow one, shares of a batch."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Size, Tensor, nn

from cepheid.benchmarks.transformer.model import Norm, Shape, Transformer
from cepheid.benchmarks.transformer.plain import Peer
from cepheid.measure.engine.turns import make_plain_task
from cepheid.reference.data.sentences.batches import PADDING
from cepheid.reference.optim.schedules import inverse_square_root
from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch.backend import free_earlier_tasks
from cepheid.reference.torch.pieces import Piece
from cepheid.reference.torch.translation import sentences
from cepheid.reference.torch.translation.beam_search import Search
from cepheid.reference.torch.translation.sentences import format_bleu_signature
from cepheid.rules import definition
from cepheid.rules.errors import UserError
from tests.reference.torch.translation.slow_search import draw_sentences
from tests.tasks import (
    EVALUATION,
    build,
    build_and_train,
    configure_small,
    create,
    make_subject,
    train,
)

pytest.importorskip("sentencepiece", reason="needs the extra translation")

FULL, MINI = (definition.load("transformer", scale) for scale in ("full", "mini"))
SMALL = Shape(vocabulary=23, width=16, heads=4, feed_forward=24, layers=2)


def network_of(norm: Norm = "pre", seed: int = 1) -> Transformer:
    torch.manual_seed(seed)
    network = Transformer(dataclasses.replace(SMALL, norm=norm)).eval()
    for parameter in network.parameters():  # also those that begin as zeros and ones
        torch.nn.init.normal_(parameter, std=0.3)
    return network


# The network -------------------------------------------------------------------------------------


def _copy_to_peer(ours: Transformer) -> Peer:
    """torch's network with our weights; it has biases at attention, which are zero here."""
    theirs = Peer(ours.shape).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.zero_()
        theirs.embedding.weight.copy_(ours.embedding)
        stacks: Any = (ours.encoder, ours.decoder), (theirs.network.encoder, theirs.network.decoder)
        for stack, (own, other) in enumerate(zip(*stacks, strict=True)):
            for layer, peer in zip(own, other.layers, strict=True):
                _copy_layer(layer, peer, has_source=stack == 1)
            if ours.shape.norm == "pre":
                own_norm = (ours.encoder_norm, ours.decoder_norm)[stack]
                other.norm.load_state_dict(own_norm.state_dict())
            else:  # torch normalises once more than the paper
                other.norm = None
    return theirs


def _copy_layer(layer: Any, peer: Any, has_source: bool) -> None:
    peer.self_attn.in_proj_weight.copy_(layer.attention.inputs.weight)
    peer.self_attn.out_proj.weight.copy_(layer.attention.output.weight)
    peer.linear1.load_state_dict(layer.feed_forward.first.state_dict())
    peer.linear2.load_state_dict(layer.feed_forward.second.state_dict())
    norms = [layer.around_attention, layer.around_feed_forward]
    if has_source:
        weights = [layer.source.query.weight, layer.source.inputs.weight]
        peer.multihead_attn.in_proj_weight.copy_(torch.cat(weights))
        peer.multihead_attn.out_proj.weight.copy_(layer.source.output.weight)
        norms.insert(1, layer.around_source)
    for number, around in enumerate(norms, 1):
        getattr(peer, f"norm{number}").load_state_dict(around.norm.state_dict())


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_forward_values_are_those_of_torch(norm: Norm) -> None:
    ours = network_of(norm)
    theirs = _copy_to_peer(ours).train()  # its fast path for evaluation sees padding as NaN
    source, target = draw_sentences(5, 9, 3), draw_sentences(7, 2, 8, seed=1)
    with torch.no_grad():
        here, there = ours(source, target), theirs(source, target)
    is_token = target != PADDING
    assert float(here.std()) > 0.1
    assert torch.allclose(here[is_token], there[is_token], atol=1e-4)


# The task ----------------------------------------------------------------------------------------


def small_config(data_root: Path, *overrides: str, **model: Any) -> RunConfig:
    settings = ("global_batch_size=16", *overrides)
    return configure_small("transformer", data_root, *settings, samples=(64, EVALUATION), **model)


def test_the_loss_is_the_mean_over_the_tokens_of_the_batch(data_root: Path) -> None:
    task = build(small_config(data_root, "pass_tokens=512"))
    task.model.train()
    pieces = task.next_pieces()
    assert len(pieces) > 1
    with torch.no_grad():
        losses = [float(task.compute_loss(piece.inputs, piece.targets)) for piece in pieces]
    tokens = [int((piece.targets != PADDING).sum()) for piece in pieces]
    expected = sum(loss * count for loss, count in zip(losses, tokens, strict=True))
    assert float(task.step()) == pytest.approx(expected / sum(tokens), rel=1e-5)


def test_with_dropout_a_run_that_goes_on_is_the_run(data_root: Path) -> None:
    config = small_config(data_root, dropout=0.1)
    straight, half = (build_and_train(config, samples=samples) for samples in (64, 32))
    resumed = build(config)
    torch.manual_seed(99)
    resumed.restore(half.state())
    train(resumed, 64)
    for name, value in straight.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name


def test_the_schedule_and_the_penalty_are_those_of_the_paper() -> None:
    rates = [inverse_square_root(n, peak=2.0, warmup_samples=100) for n in (25, 100, 400)]
    assert rates == pytest.approx([0.5, 2.0, 1.0])
    assert inverse_square_root(7, peak=2.0, warmup_samples=0) == 2.0
    assert Search(4, 0.6, 50).penalty(7) == pytest.approx(2**0.6)


def test_what_it_is_timed_against_computes_the_same_sentences_at_once(data_root: Path) -> None:
    task = build(small_config(data_root, "pass_tokens=512"))
    plain = make_plain_task(make_subject(task.config, task, "global_batch_size=16"))
    ours, theirs = task.next_pieces(), plain.next_pieces()

    def list_sentences(pieces: Sequence[Piece]) -> list[list[int]]:
        rows = [row for piece in pieces for row in piece.inputs]
        return sorted(row[row != PADDING].tolist() for row in rows)

    assert len(ours) > 1
    assert [len(piece.inputs) for piece in theirs] == [16]
    assert list_sentences(ours) == list_sentences(theirs)
    assert plain.step().isfinite()


def warm_up_task(config: RunConfig) -> tuple[Any, list[Size]]:
    """A task after its warm-up, and the shapes of the targets of which it computed losses."""
    task = create(config)
    task.build()
    shapes: list[Size] = []

    def look(module: nn.Module, arguments: tuple[Tensor, Tensor]) -> None:
        shapes.append(arguments[1].shape)

    task.model.register_forward_pre_hook(look)
    task.warm_up()
    return task, shapes


def test_warming_up_computes_a_full_pass_or_share_and_the_longest_evaluation(
    data_root: Path,
) -> None:
    task, (*steps, evaluation) = warm_up_task(
        small_config(data_root, "global_batch_size=2048", "pass_tokens=1024")
    )
    assert steps
    assert set(steps) == {(21, 25)}  # 21 · (23 + 25) places
    task.open_data()
    assert evaluation[0] == task.evaluation_batch
    assert evaluation[1] > task.data.pairs.lengths.max()
    _, (*steps, _) = warm_up_task(small_config(data_root, "pass_tokens=32768"))
    assert {count for count, _ in steps} == {16}


@pytest.mark.parametrize(
    ("micro_batch", "says"),
    [("whole", r"pass of 1,024 tokens .* --set pass_tokens"), ("auto", r"of 512 .* no shorter")],
)
def test_a_pass_beyond_all_memory_is_told_with_what_to_do(
    data_root: Path, monkeypatch: pytest.MonkeyPatch, micro_batch: str, says: str
) -> None:
    def too_much(*arguments: Tensor) -> Tensor:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate …")

    settings = ["pass_tokens=1024", f"micro_batch={micro_batch}"]
    task = create(small_config(data_root, *settings))
    task.build()
    monkeypatch.setattr(task, "compiled_loss", too_much)
    with pytest.raises(UserError, match=says):
        task.warm_up()


@pytest.mark.slow  # torch.compile traces for 20 s
def test_passes_of_all_sizes_are_compiled_before_the_clock_runs(
    data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two graphs: of one sentence and of several, whatever their lengths. (As torch traces and
    guards them; the last stage of the compiler takes long and decides nothing of that.)"""
    from torch._dynamo.utils import counters  # takes long to load

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    free_earlier_tasks()
    compiled = counters["stats"]
    compiled.clear()
    task = create(small_config(data_root, "compile=on", layers=1))
    task.build()
    task.warm_up()
    task.model.train()
    before = compiled["unique_graphs"]
    for count, *lengths in ((1, 7, 9), (1, 8, 8), (1, 30, 12), (5, 9, 11), (7, 7, 7)):
        both = sentences.draw_sentences(task.shape, count, lengths, torch.Generator())
        task.compiled_loss(*both).backward()
    free_earlier_tasks()
    assert before == compiled["unique_graphs"] == 2


def test_references_translate_perfectly(data_root: Path) -> None:
    """What BLEU is computed of is the text of the evaluation set, in its order. The vocabulary of
    so little training text lacks a few of its letters."""
    task = build(small_config(data_root))
    train, pairs = task.definition.train_samples, task.data.pairs
    rows = range(train, train + EVALUATION)
    decoded = [pairs.text(pairs.target.row(row).tolist()) for row in rows]
    assert 95 < task.data.bleu.corpus_score(decoded, None).score <= 100.001
    assert "case:lc" in format_bleu_signature()
    assert "tok:intl" in format_bleu_signature()
