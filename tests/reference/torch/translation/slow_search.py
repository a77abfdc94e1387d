"""Sentences of noise, and a beam search as one writes it down, which the fast one must match."""

from collections.abc import Callable

import torch
from torch import Tensor

from cepheid.reference.data.sentences.batches import END, PADDING
from cepheid.reference.torch.translation.beam_search import Search

Predict = Callable[[list[int]], tuple[Tensor, Tensor]]
"""From the tokens so far, END first: logits of the next one (vocabulary,), and the attention of all
steps so far, summed (places,)."""


def search_slowly(predict: Predict, places: int, search: Search) -> list[int]:
    """Search for one sentence of ``places``: every hypothesis is computed anew, none in a batch."""
    limit = places + search.extra_tokens
    going: list[tuple[float, list[int]]] = [(0.0, [])]
    ended: list[tuple[float, list[int]]] = []
    for length in range(1, limit + 1):
        candidates = []
        for score, tokens in going:
            logits, covered = predict([END, *tokens])
            coverage = search.coverage * float(covered.clamp(max=1).log().sum())
            for token, gain in enumerate(logits.log_softmax(0).tolist()):
                candidates.append((score + gain, [*tokens, token], coverage))
        candidates.sort(reverse=True)
        best = candidates[: 2 * search.beam]
        going = [(s, tokens) for s, tokens, _ in best if tokens[-1] != END][: search.beam]
        norm = ((5 + length) / 6) ** search.alpha
        ended += [(s / norm + c, tokens[:-1]) for s, tokens, c in best if tokens[-1] == END]
        if ended and max(ended)[0] >= going[0][0] / ((5 + limit) / 6) ** search.alpha:
            break
    return [t for t in (max(ended)[1] if ended else going[0][1]) if t != PADDING]


def draw_sentences(*lengths: int, seed: int = 0, vocabulary: int = 23) -> Tensor:
    """Draw sentences of these lengths, END included, padded."""
    noise = torch.Generator().manual_seed(seed)
    block = torch.full((len(lengths), max(lengths)), PADDING)
    for row, length in zip(block, lengths, strict=True):
        row[: length - 1] = torch.randint(END + 2, vocabulary, (length - 1,), generator=noise)
        row[length - 1] = END
    return block
