"""GNMT during a beam search: the states of every hypothesis, the projected keys of every source."""

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from cepheid.benchmarks.gnmt.model import GNMT, Memory
    from cepheid.benchmarks.gnmt.recurrent import State


class RecurrentDecoding:
    """A decoder with the states of its layers after the tokens so far."""

    def __init__(self, network: "GNMT", memory: "Memory") -> None:
        self.network, self.memory = network, memory
        self.states: list[State] | None = None

    def step(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Append ``tokens``, (sentences, hypotheses); return logits of the next place, attention.

        They are (sentences, hypotheses, vocabulary) and (sentences, hypotheses, source places).
        """
        embedded = self.network.embedding(tokens.reshape(1, -1))
        outputs, attention, self.states = self.network.decode(embedded, self.memory, self.states)
        logits = self.network.classifier(outputs)
        return logits.view(*tokens.shape, -1), attention.view(*tokens.shape, -1)

    def keep(self, hypotheses: Tensor, sentences: Tensor | None) -> None:
        """Go on with ``hypotheses``, (n,), of all or of some ``sentences``, (m,)."""
        assert self.states is not None, "no token came before"
        if sentences is not None:
            self.memory = self.memory.of(sentences)
        self.states = [
            (output.index_select(1, hypotheses), cell.index_select(1, hypotheses))
            for output, cell in self.states
        ]
