"""The beam search against one as it is written down, on decoders that know nothing of targets."""

import inspect
from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch", reason="needs the extra torch")
pytest.importorskip("sentencepiece", reason="needs the extra translation")

from torch import Tensor

from cepheid.reference.data.sentences.pairs import END, PADDING
from cepheid.reference.torch.translation.beam_search import Search, translate
from tests.reference.torch.translation.slow_search import search_slowly
from tests.tasks import CountWaits

VOCABULARY, WIDTH = 11, 6


class Recurrent:
    """A random network with a state and an attention; ``scale`` is how sure it is."""

    def __init__(self, seed: int, scale: float) -> None:
        random = torch.Generator().manual_seed(seed)
        self.embedding = torch.randn(VOCABULARY, WIDTH, generator=random)
        self.matrix = torch.randn(WIDTH, WIDTH, generator=random)
        self.output = scale * torch.randn(WIDTH, VOCABULARY, generator=random)

    def start_decoding(self, source: Tensor, hypotheses: int, places: int) -> "Going":
        keys = self.embedding[source][:, None].expand(-1, hypotheses, -1, -1)
        mask = (source == PADDING)[:, None].expand(-1, hypotheses, -1)
        states = torch.zeros(*mask.shape[:2], WIDTH)
        return Going(self, hypotheses, keys.flatten(0, 1), mask.flatten(0, 1), states.flatten(0, 1))


@dataclass
class Going:
    """Keys, mask and states of all hypotheses, one after the other."""

    network: Recurrent
    beam: int
    keys: Tensor
    mask: Tensor
    states: Tensor

    def step(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        net = self.network
        self.states = torch.tanh(net.embedding[tokens.flatten()] + self.states @ net.matrix)
        energy = torch.einsum("npw,nw->np", self.keys, self.states)
        attention = energy.masked_fill(self.mask, float("-inf")).softmax(-1)
        read = torch.einsum("npw,np->nw", self.keys, attention)
        logits = (self.states + read) @ net.output
        shape = (*tokens.shape, -1)
        return logits.view(shape), attention.view(shape)

    def keep(self, hypotheses: Tensor, sentences: Tensor | None) -> None:
        self.keys, self.mask = self.keys[hypotheses], self.mask[hypotheses]
        self.states = self.states[hypotheses]


def translate_slowly(network: Recurrent, source: Tensor, search: Search) -> list[int]:
    """Translate one sentence, (places,), by the slow search."""

    def predict(tokens: list[int]) -> tuple[Tensor, Tensor]:
        decoding = network.start_decoding(source[None], 1, len(tokens))
        steps = [decoding.step(torch.tensor([[token]])) for token in tokens]
        covered = torch.stack([attention[0, 0] for _, attention in steps]).sum(0)
        return steps[-1][0][0, 0], covered

    return search_slowly(predict, len(source), search)


def draw_sources(seed: int) -> Tensor:
    """Four sentences of different lengths, padded."""
    block: Tensor = torch.full((4, 7), PADDING)
    random = torch.Generator().manual_seed(seed)
    for row, length in zip(block, (3, 7, 1, 5), strict=True):
        row[: length - 1] = torch.randint(3, VOCABULARY, (length - 1,), generator=random)
        row[length - 1] = END
    return block


def test_the_host_waits_once_a_step() -> None:
    """For which sentences are done; at the end one copy takes all translations."""
    source = torch.cat([draw_sources(seed) for seed in range(8)])
    with CountWaits() as waits:
        found = translate(Recurrent(0, scale=0.7), source, Search(3, 0.6, extra_tokens=4))
    assert len(found) == 32
    assert waits.count <= 7 + 4 + 2  # steps at most, the limit, and the end


@pytest.mark.parametrize("coverage", [0.0, 0.2, 2.0])
def test_it_finds_what_a_slow_search_finds(coverage: float) -> None:
    search, lengths = Search(beam=3, alpha=0.6, extra_tokens=4, coverage=coverage), set()
    for seed in range(6):
        network, source = Recurrent(seed, scale=0.7), draw_sources(seed)
        found = translate(network, source, search)
        assert found == [translate_slowly(network, row[row != PADDING], search) for row in source]
        lengths |= set(map(len, found))
    assert len(lengths) > 3


def test_coverage_changes_translations() -> None:
    without, with_coverage = Search(3, 0.6, 4), Search(3, 0.6, 4, coverage=0.5)
    changed = 0
    for seed in range(6):
        network, source = Recurrent(seed, scale=0.7), draw_sources(seed)
        changed += translate(network, source, without) != translate(network, source, with_coverage)
    assert changed


def test_the_coverage_of_the_paper() -> None:
    attention = torch.tensor([[0.5, 2.0, 0.0], [1.0, 1.0, 1.0]])  # the last place is padding
    found = Search(1, 0.6, 1, coverage=0.1).score_coverage(attention)
    assert found.tolist() == pytest.approx([0.1 * -0.6931472, 0.0])


def test_a_search_gets_no_target() -> None:
    """Teacher forcing cannot leak into a translation: the search is given the sources alone."""
    assert list(inspect.signature(translate).parameters) == ["network", "source", "search"]
