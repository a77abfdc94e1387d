"""What holds for every network that translates, and for every task that trains one."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cepheid.benchmarks.gnmt import model as gnmt
from cepheid.benchmarks.transformer import model as transformer
from cepheid.reference.data.sentences.batches import PADDING
from cepheid.reference.torch.translation.beam_search import Search, shift, translate
from tests.reference.torch.translation.slow_search import draw_sentences, search_slowly
from tests.tasks import EVALUATION, CountWaits, assert_alike, build, configure_small, run_step

pytest.importorskip("sentencepiece", reason="needs the extra translation")
pytest.importorskip("sacrebleu", reason="needs the extra translation")

OF_GNMT = gnmt.Shape(vocabulary=23, width=8, layers=4)
OF_TRANSFORMER = transformer.Shape(vocabulary=23, width=16, heads=4, feed_forward=24, layers=2)


def make_gnmt(**changes: Any) -> Any:
    network = gnmt.GNMT(dataclasses.replace(OF_GNMT, **changes)).eval()
    network.classifier.weight.data *= 3  # as sure as one that has learnt
    return network


def make_transformer(**changes: Any) -> Any:
    network = transformer.Transformer(dataclasses.replace(OF_TRANSFORMER, **changes)).eval()
    for name, parameter in network.named_parameters():  # also those that begin as zeros and ones
        if not name.startswith("decoder_norm"):
            torch.nn.init.normal_(parameter, std=0.3)
    return network


MAKE: Mapping[str, Callable[[], Any]] = {
    "gnmt": make_gnmt,
    "gnmt, input feeding": lambda: make_gnmt(variant="input_feeding"),
    "transformer": make_transformer,
    "transformer, norms after": lambda: make_transformer(norm="post"),
}


def make_network(name: str, seed: int = 1) -> Any:
    torch.manual_seed(seed)
    return MAKE[name]()


@pytest.mark.parametrize("name", MAKE)
def test_padding_changes_nothing(name: str) -> None:
    network = make_network(name)
    source, target = draw_sentences(4), draw_sentences(6, seed=1)
    wider = [torch.nn.functional.pad(tokens, (0, 5)) for tokens in (source, target)]
    assert torch.allclose(network(source, target), network(*wider)[:, :6], atol=1e-5)


@pytest.mark.parametrize("name", MAKE)
def test_later_tokens_are_not_seen(name: str) -> None:
    network, source, target = make_network(name), draw_sentences(4), draw_sentences(6, seed=1)
    changed = target.clone()
    changed[0, 3] = 3 + (int(target[0, 3]) - 2) % 20
    here, there = network(source, target), network(source, changed)
    assert torch.equal(here[:, :4], there[:, :4])
    assert not torch.allclose(here[:, 4:], there[:, 4:])


@pytest.mark.parametrize("name", MAKE)
@torch.no_grad()
def test_a_search_computes_the_logits_of_training_step_by_step(name: str) -> None:
    network, source = make_network(name), draw_sentences(5, 9, 3)
    target = draw_sentences(6, 6, 6, seed=1)
    expected, decoding = network(source, target), network.start_decoding(source, 1, 6)
    for place, before in enumerate(shift(target).unbind(1)):
        logits, attention = decoding.step(before[:, None])
        assert torch.allclose(logits[:, 0], expected[:, place], atol=1e-5)
        if attention is not None:
            assert torch.allclose(attention.sum(-1), torch.ones(3, 1))
            assert not attention[0, 0, 5:].any()
        decoding.keep(torch.arange(3), None)


def translate_slowly(network: Any, sentence: Tensor, search: Search) -> list[int]:
    """Translate one sentence, (places,), by the slow search."""
    source = sentence[sentence != PADDING][None]

    def predict(tokens: list[int]) -> tuple[Tensor, Tensor]:
        logits = network(source, torch.tensor([[*tokens[1:], PADDING]]))[0, -1]
        if not search.coverage:
            return logits, torch.ones(())
        embedded = network.embedding(torch.tensor(tokens)[:, None])
        _, attention, _ = network.decode(embedded, network.remember(source), None)
        return logits, attention[0].sum(0)

    return search_slowly(predict, source.shape[1], search)


@pytest.mark.parametrize(
    ("name", "coverage"), [("gnmt", 2.0), *((n, 0.3 * n.startswith("gnmt")) for n in MAKE)]
)
@torch.no_grad()
def test_the_search_finds_what_a_slow_one_finds(name: str, coverage: float) -> None:
    """A sentence is therefore translated alike in any company."""
    search, lengths = Search(beam=3, alpha=0.6, extra_tokens=3, coverage=coverage), set()
    for seed in range(2):
        network, source = make_network(name, seed), draw_sentences(3, 7, 5, seed=seed)
        found = translate(network, source, search)
        assert found == [translate_slowly(network, sentence, search) for sentence in source]
        lengths |= set(map(len, found))
    assert len(lengths) > 1


@torch.no_grad()
def test_coverage_changes_translations() -> None:
    searches = [Search(3, 0.6, 4, coverage) for coverage in (0.0, 0.5)]
    for seed in range(6):
        network, source = make_network("gnmt", seed), draw_sentences(3, 7, 5, 6, seed=seed)
        first, second = (translate(network, source, search) for search in searches)
        if first != second:
            return
    pytest.fail("no translation changes")


def test_the_coverage_of_the_paper() -> None:
    attention = torch.tensor([[0.5, 2.0, 0.0], [1.0, 1.0, 1.0]])  # the last place is padding
    found = Search(1, 0.6, 1, coverage=0.1).score_coverage(attention)
    assert found.tolist() == pytest.approx([0.1 * -0.6931472, 0.0])


@torch.no_grad()
def test_the_host_waits_once_a_step() -> None:
    """For which sentences are done; at the end one copy takes all translations."""
    source = draw_sentences(*[3, 7, 1, 5] * 8)
    with CountWaits() as waits:
        found = translate(make_network("gnmt"), source, Search(3, 0.6, extra_tokens=4))
    assert len(found) == 32
    assert waits.count <= 7 + 4 + 2  # steps at most, the limit, and the end


def test_a_search_gets_no_target() -> None:
    """Teacher forcing cannot leak into a translation: the search is given the sources alone."""
    assert list(inspect.signature(translate).parameters) == ["network", "source", "search"]


@pytest.mark.parametrize("name", ["gnmt", "transformer"])
def test_passes_change_no_gradient(name: str, data_root: Path) -> None:
    gradients = []
    for tokens in (32768, 512):
        settings = ("global_batch_size=32", f"pass_tokens={tokens}")
        task = build(configure_small(name, data_root, *settings, samples=(64, EVALUATION)))
        assert (len(task.next_pieces()) > 1) == (tokens == 512)
        gradients.append(run_step(task)[1])
    assert_alike(gradients[0], gradients[1], "gradients")
