"""Beam search as in tensor2tensor.

The score of n tokens, END included, is the logarithm of their probability over ((5 + n) / 6)^alpha
(Wu et al. 2016, arXiv:1609.08144, without coverage).

Ended hypotheses do not compete with open ones. A sentence is done when no open hypothesis can beat
its best ended one, or at its limit of tokens. All sentences of a batch take a step together; done
ones leave the batch. The translation of a sentence does not depend on the rest of its batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.transformer.model import Memory, Transformer
from reference.data.wmt.vocabulary import END, PADDING

LOWEST = float("-inf")


@dataclass(frozen=True)
class Search:
    """A beam search: ``beam`` hypotheses, ``extra_tokens`` more tokens than the source at most."""

    beam: int
    alpha: float
    extra_tokens: int

    def penalty(self, tokens: Tensor | int) -> Tensor | float:
        """Return the divisor of a logarithm of probability, in the shape of ``tokens``."""
        return ((5.0 + tokens) / 6.0) ** self.alpha


@dataclass
class _Hypotheses:
    """The hypotheses of the sentences that are not done.

    ``tokens`` (sentences, beam, places) and ``scores`` (sentences, beam) are open; ``ended``
    (sentences, places) is the best ended one, with its score.
    """

    numbers: Tensor
    limits: Tensor
    tokens: Tensor
    scores: Tensor
    ended: Tensor
    ended_scores: Tensor


@torch.no_grad()
def translate(network: Transformer, source: Tensor, search: Search) -> list[list[int]]:
    """Return the best hypothesis of each sentence of ``source``, (sentences, places).

    A hypothesis is its tokens without END. There are as many steps as the longest hypothesis has
    tokens; each step computes one place of all of them.
    """
    limits = (source != PADDING).sum(1) + search.extra_tokens
    memory, going = network.remember(source), _begin(source, limits, search)
    caches = _make_caches(network, len(source) * search.beam, int(limits.max()), memory)
    results: list[list[int]] = [[] for _ in source]
    for place in range(int(limits.max())):
        logits = network.step(going.tokens[:, :, -1], place, caches, memory)
        origin = _extend(going, logits.float(), search, place + 1)
        done = _is_done(going, search, place + 1)
        if bool(done.any()):
            _collect(going, done, results)
            left = torch.nonzero(~done)[:, 0]
            if not len(left):
                break
            memory, origin = memory.of(left), origin[left]
            going = _Hypotheses(*(part[left] for part in vars(going).values()))
        hypotheses = origin.flatten()
        caches = [_select_hypotheses(cache, hypotheses, place + 1) for cache in caches]
    return results


def _begin(source: Tensor, limits: Tensor, search: Search) -> _Hypotheses:
    """Return one hypothesis per sentence of END alone, the token before every sentence."""
    sentences, device = len(source), source.device
    scores = torch.full((sentences, search.beam), LOWEST, device=device)
    scores[:, 0] = 0.0
    return _Hypotheses(
        numbers=torch.arange(sentences, device=device),
        limits=limits,
        tokens=torch.full((sentences, search.beam, 1), END, device=device),
        scores=scores,
        ended=torch.zeros((sentences, 1), dtype=torch.int64, device=device),
        ended_scores=torch.full((sentences,), LOWEST, device=device),
    )


def _make_caches(
    network: Transformer, hypotheses: int, places: int, memory: Memory
) -> list[tuple[Tensor, Tensor]]:
    keys = memory.keys[0]
    shape = (hypotheses, keys.shape[1], places, keys.shape[3])
    return [(keys.new_empty(shape), keys.new_empty(shape)) for _ in network.decoder]


def _select_hypotheses(
    cache: tuple[Tensor, Tensor], hypotheses: Tensor, places: int
) -> tuple[Tensor, Tensor]:
    """Return the caches of other hypotheses; only the first ``places`` are filled."""

    def take(part: Tensor) -> Tensor:
        result = part.new_empty((len(hypotheses), *part.shape[1:]))
        result[:, :, :places] = part[:, :, :places].index_select(0, hypotheses)
        return result

    return take(cache[0]), take(cache[1])


def _extend(going: _Hypotheses, logits: Tensor, search: Search, length: int) -> Tensor:
    """Add the likeliest tokens; return the hypothesis from which each comes.

    It is (sentences, beam), counted over all sentences of the step.
    """
    sentences, beam, vocabulary = logits.shape
    scores = going.scores[:, :, None] + logits.log_softmax(-1)
    best, where = scores.view(sentences, -1).topk(2 * beam)
    origin, token = where // vocabulary, where % vocabulary
    ends = token == END

    ending = torch.where(ends, best, LOWEST) / search.penalty(length)
    score, at = ending.max(1)
    is_better = score > going.ended_scores
    from_ = origin.gather(1, at[:, None])[:, 0]
    rows = torch.arange(sentences, device=logits.device)
    ended = going.tokens[rows, from_]
    kept = torch.nn.functional.pad(going.ended, (0, ended.shape[1] - going.ended.shape[1]))
    going.ended = torch.where(is_better[:, None], ended, kept)
    going.ended_scores = torch.where(is_better, score, going.ended_scores)

    going.scores, at = torch.where(ends, LOWEST, best).topk(beam)
    origin, token = origin.gather(1, at), token.gather(1, at)
    before = going.tokens.gather(1, origin[:, :, None].expand(-1, -1, going.tokens.shape[2]))
    going.tokens = torch.cat([before, token[:, :, None]], dim=2)
    return origin + rows[:, None] * beam


def _is_done(going: _Hypotheses, search: Search, length: int) -> Tensor:
    """Return whether no open hypothesis can beat the best ended one, for each sentence.

    Scores of open hypotheses can only fall, and the largest penalty is that of the limit.
    """
    bound = going.scores[:, 0] / search.penalty(going.limits)
    return (going.ended_scores >= bound) | (length >= going.limits)


def _collect(going: _Hypotheses, done: Tensor, results: list[list[int]]) -> None:
    """Write the best ended hypothesis of each done sentence, or the best open one, to results."""
    for row in torch.nonzero(done)[:, 0].tolist():
        has_ended = bool(going.ended_scores[row] > LOWEST)
        tokens = going.ended[row] if has_ended else going.tokens[row, 0]
        results[int(going.numbers[row])] = _remove_padding(tokens[1:].tolist())


def _remove_padding(tokens: Sequence[int]) -> list[int]:
    return [token for token in tokens if token != PADDING]
