"""Beam search as in tensor2tensor, over any decoder.

The score of n tokens, END included, is the logarithm of their probability over ((5 + n) / 6)^alpha.
With coverage it also has coverage · Σ log(min(1, a)) over the places of the source, where a is the
attention that a place got from all n tokens; a place without any attention counts as covered, as
padding must (Wu et al. 2016, arXiv:1609.08144, section 7; MLPerf's reference of GNMT).

Ended hypotheses do not compete with open ones. A sentence is done when no open hypothesis can beat
its best ended one, or at its limit of tokens. All sentences of a batch take a step together; done
ones leave the batch. The translation of a sentence does not depend on the rest of its batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from cepheid.reference.data.sentences.batches import END, PADDING

LOWEST = float("-inf")


@dataclass(frozen=True)
class Search:
    """A beam search: ``beam`` hypotheses, ``extra_tokens`` more tokens than the source at most."""

    beam: int
    alpha: float
    extra_tokens: int
    coverage: float = 0.0

    def penalty(self, tokens: Tensor | int) -> Tensor | float:
        """Return the divisor of a logarithm of probability, in the shape of ``tokens``."""
        return ((5.0 + tokens) / 6.0) ** self.alpha

    def score_coverage(self, attention: Tensor) -> Tensor:
        """Return what coverage adds to scores, (…), for attention summed over tokens (…, places).

        It is never positive.
        """
        missing = torch.where(attention > 0, attention.clamp(max=1.0).log(), 0.0)
        return self.coverage * missing.sum(-1)


def shift(target: Tensor) -> Tensor:
    """Return the tokens before those of ``target``, int64 (sentences, places): END first."""
    return torch.nn.functional.pad(target[:, :-1], (1, 0), value=END)


class Decoding(Protocol):
    """A decoder during a search: it keeps what it has computed of sources and hypotheses."""

    def step(self, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """Append ``tokens``, (sentences, hypotheses).

        Return the logits of the next place, (sentences, hypotheses, vocabulary), and the attention
        from which they come, (sentences, hypotheses, places of the source), or None where the
        decoder has not one attention.
        """

    def keep(self, hypotheses: Tensor, sentences: Tensor | None) -> None:
        """Go on with ``hypotheses``, (n,), counted over all sentences of the last step.

        Only ``sentences``, (m,), are left; None means that all are.
        """


class Decoder(Protocol):
    """A network that can translate."""

    def start_decoding(self, source: Tensor, hypotheses: int, places: int) -> Decoding:
        """Encode ``source``, (sentences, places), for so many hypotheses of each sentence.

        A hypothesis has at most ``places`` tokens.
        """


@dataclass
class _Hypotheses:
    """The hypotheses of the sentences that are not done.

    ``tokens`` (sentences, beam, places) and ``scores`` (sentences, beam) are open; ``ended``
    (sentences, places) is the best ended one, with its score. ``attention`` is summed over the
    tokens, (sentences, beam, places of the source); it is None if the search does not use it.
    """

    numbers: Tensor
    limits: Tensor
    tokens: Tensor
    scores: Tensor
    ended: Tensor
    ended_scores: Tensor
    attention: Tensor | None = None

    def select(self, sentences: Tensor) -> "_Hypotheses":
        """Return those of ``sentences``, (n,)."""
        parts = (None if part is None else part[sentences] for part in vars(self).values())
        return _Hypotheses(*parts)  # type: ignore[arg-type]  # only the last one may be None


@torch.no_grad()
def translate(network: Decoder, source: Tensor, search: Search) -> list[list[int]]:
    """Return the best hypothesis of each sentence of ``source``, (sentences, places).

    A hypothesis is its tokens without END. There are as many steps as the longest hypothesis has
    tokens; each step computes one place of all of them.
    """
    limits = (source != PADDING).sum(1) + search.extra_tokens
    longest = int(limits.max())
    decoding = network.start_decoding(source, search.beam, longest)
    going = _begin(source, limits, search)
    found: list[tuple[Tensor, Tensor]] = []
    for length in range(1, longest + 1):
        logits, attention = decoding.step(going.tokens[:, :, -1])
        origin = _extend(going, logits.float(), attention, search, length)
        done, left = _is_done(going, search, length), None
        if ended := sum(done.tolist()):  # the only wait of a step for the device
            in_order = done.to(torch.uint8).argsort(stable=True)  # those that go on come first
            left, stops = in_order[:-ended], in_order[-ended:]
            found.append((going.numbers[stops], _take_best(going)[stops]))
            if not len(left):
                break
            going, origin = going.select(left), origin[left]
        decoding.keep(origin.flatten(), left)
    return _collect(found, len(source))


def _begin(source: Tensor, limits: Tensor, search: Search) -> _Hypotheses:
    """Return one hypothesis per sentence of END alone, the token before every sentence."""
    sentences, device = len(source), source.device
    scores = torch.full((sentences, search.beam), LOWEST, device=device)
    scores[:, 0] = 0.0
    attention = None
    if search.coverage:
        attention = torch.zeros((sentences, search.beam, source.shape[1]), device=device)
    return _Hypotheses(
        numbers=torch.arange(sentences, device=device),
        limits=limits,
        tokens=torch.full((sentences, search.beam, 1), END, device=device),
        scores=scores,
        ended=torch.zeros((sentences, 1), dtype=torch.int64, device=device),
        ended_scores=torch.full((sentences,), LOWEST, device=device),
        attention=attention,
    )


def _extend(
    going: _Hypotheses, logits: Tensor, attention: Tensor | None, search: Search, length: int
) -> Tensor:
    """Add the likeliest tokens; return the hypothesis from which each comes.

    It is (sentences, beam), counted over all sentences of the step.
    """
    sentences, beam, vocabulary = logits.shape
    scores = going.scores[:, :, None] + logits.log_softmax(-1)
    best, where = scores.view(sentences, -1).topk(2 * beam)
    origin, token = where // vocabulary, where % vocabulary
    ends = token == END

    ending = torch.where(ends, best, LOWEST) / search.penalty(length)
    if going.attention is not None:
        assert attention is not None, "this decoder has no attention that coverage could sum"
        going.attention = going.attention + attention.float()
        ending = ending + search.score_coverage(going.attention).gather(1, origin)
    score, at = ending.max(1)
    is_better = score > going.ended_scores
    from_ = origin.gather(1, at[:, None])[:, 0]
    rows = torch.arange(sentences, device=logits.device)
    ended = going.tokens[rows, from_]
    kept = _pad(going.ended, ended.shape[1])
    going.ended = torch.where(is_better[:, None], ended, kept)
    going.ended_scores = torch.where(is_better, score, going.ended_scores)

    going.scores, at = torch.where(ends, LOWEST, best).topk(beam)
    origin, token = origin.gather(1, at), token.gather(1, at)
    going.tokens = torch.cat([_take(going.tokens, origin), token[:, :, None]], dim=2)
    if going.attention is not None:
        going.attention = _take(going.attention, origin)
    return origin + rows[:, None] * beam


def _take(values: Tensor, origin: Tensor) -> Tensor:
    """Return the rows ``origin``, (sentences, beam), of values (sentences, beam, places)."""
    return values.gather(1, origin[:, :, None].expand(-1, -1, values.shape[2]))


def _is_done(going: _Hypotheses, search: Search, length: int) -> Tensor:
    """Return whether no open hypothesis can beat the best ended one, for each sentence.

    Scores of open hypotheses can only fall, the largest penalty is that of the limit, and coverage
    lowers a score or leaves it.
    """
    bound = going.scores[:, 0] / search.penalty(going.limits)
    return (going.ended_scores >= bound) | (length >= going.limits)


def _take_best(going: _Hypotheses) -> Tensor:
    """Return the best ended hypothesis of each sentence, or the best open one: (n, places)."""
    has_ended, opened = (going.ended_scores > LOWEST)[:, None], going.tokens[:, 0]
    return torch.where(has_ended, _pad(going.ended, opened.shape[1]), opened)[:, 1:]


def _collect(found: Sequence[tuple[Tensor, Tensor]], count: int) -> list[list[int]]:
    """Return the tokens of so many sentences, of which ``found`` has numbers and hypotheses."""
    width = found[-1][1].shape[1]  # hypotheses become longer from step to step
    rows = [torch.cat([numbers[:, None], _pad(best, width)], 1) for numbers, best in found]
    results: list[list[int]] = [[] for _ in range(count)]
    for number, *tokens in torch.cat(rows).tolist():
        results[number] = [token for token in tokens if token != PADDING]
    return results


def _pad(tokens: Tensor, width: int) -> Tensor:
    """Return ``tokens``, (n, places), as (n, ``width``)."""
    return torch.nn.functional.pad(tokens, (0, width - tokens.shape[1]))
