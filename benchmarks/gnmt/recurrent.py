"""One layer of an LSTM over a whole sequence, computed in one of three ways.

``library`` is torch's own: oneDNN on CPUs, cuDNN on GPUs. ``hoisted`` is what Kumar et al. 2019
describe (arXiv:1909.09756, section 3): the inputs of all steps are projected in one product before
the loop, and the gradients of all matrices are computed in one product each after the backward
loop. ``plain`` is the textbook: each step multiplies its input beside the last state, and autograd
adds up the gradients of the matrices step by step. All have the same parameters, gates in the order
input, forget, cell, output.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

Form = Literal["library", "hoisted", "plain"]
State = tuple[Tensor, Tensor]


class Recurrent(nn.LSTM):
    """A layer that reads ``inputs`` (places, sentences, channels) from the first place on."""

    form: Form = "library"

    def forward(self, inputs: Tensor, state: State | None = None) -> tuple[Tensor, State]:  # type: ignore[override]
        """Return outputs, (places, sentences, width), and the last state, (1, sentences, width).

        A state is output and cell; None is zeros.
        """
        device = inputs.device.type
        if state is None:
            zeros = inputs.new_zeros(1, inputs.shape[1], self.hidden_size)
            state = zeros, zeros
        if self.form == "library":
            has_autocast = torch.amp.is_autocast_available(device)
            if has_autocast and torch.is_autocast_enabled(device):
                # Of all arguments, oneDNN's autocast converts the weights alone.
                kind = torch.get_autocast_dtype(device)
                inputs, state = inputs.to(kind), (state[0].to(kind), state[1].to(kind))
            outputs, (last, cell) = super().forward(inputs, state)
            return outputs, (last, cell)
        of_input, of_state, *biases = self.parameters()
        weights = of_input, of_state, biases[0] + biases[1]
        if self.form == "plain":
            return run_plainly(inputs, state, *weights)
        with torch.autocast(device, enabled=False):  # this loop is for float32 alone
            exact = [part.float() for part in (inputs, *state, *weights)]
            outputs, cell = HoistedLoop.apply(*exact)
        return outputs, (outputs[-1:], cell)


def run_plainly(
    inputs: Tensor, state: State, of_input: Tensor, of_state: Tensor, bias: Tensor
) -> tuple[Tensor, State]:
    """Return outputs, (places, sentences, width), and last state of steps that do everything."""
    (last, cell), outputs = state, []
    matrix = torch.cat([of_input, of_state], dim=1)
    for one in inputs:
        gates = linear(torch.cat([one, last[0]], dim=1), matrix, bias)
        opening, forgetting, change, showing = gates.chunk(4, dim=1)
        cell = forgetting.sigmoid() * cell + opening.sigmoid() * change.tanh()
        last = showing.sigmoid() * cell.tanh()
        outputs.append(last)
    return torch.cat(outputs), (last, cell)


class HoistedLoop(torch.autograd.Function):
    """The loop with one product of the state per step, forward and backward."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        last: Tensor,
        cell: Tensor,
        of_input: Tensor,
        of_state: Tensor,
        bias: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the outputs of all places and the last cell, (1, sentences, width)."""
        places, sentences, width = *inputs.shape[:2], of_state.shape[1]
        gates = torch.addmm(bias, inputs.flatten(0, 1), of_input.t()).view(places, sentences, -1)
        outputs = inputs.new_empty(places + 1, sentences, width)
        cells = torch.empty_like(outputs)
        outputs[0], cells[0] = last[0], cell[0]
        by_state = of_state.t()
        for place, gate in enumerate(gates):
            gate.addmm_(outputs[place], by_state)
            gate[:, : 2 * width].sigmoid_()
            gate[:, 2 * width : 3 * width].tanh_()
            gate[:, 3 * width :].sigmoid_()
            opening, forgetting, change, showing = gate.chunk(4, dim=1)
            torch.mul(forgetting, cells[place], out=cells[place + 1]).addcmul_(opening, change)
            torch.tanh(cells[place + 1], out=outputs[place + 1]).mul_(showing)
        ctx.save_for_backward(inputs, of_input, of_state, gates, outputs, cells)
        return outputs[1:].clone(), cells[-1:].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_outputs: Tensor, by_cell: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of all arguments; those of the matrices are one product each.

        ``by_outputs`` is (places, sentences, width), ``by_cell`` (1, sentences, width).
        """
        inputs, of_input, of_state, gates, outputs, cells = ctx.saved_tensors
        by_gates, width = torch.empty_like(gates), of_state.shape[1]
        by_last, by_cell = torch.zeros_like(by_cell[0]), by_cell[0].clone()
        for place in range(len(gates) - 1, -1, -1):
            opening, forgetting, change, showing = gates[place].chunk(4, dim=1)
            into = by_gates[place].chunk(4, dim=1)
            by_last = by_last + by_outputs[place]
            seen = cells[place + 1].tanh()
            by_cell = by_cell + by_last * showing * (1 - seen * seen)
            torch.mul(by_cell * change, opening * (1 - opening), out=into[0])
            torch.mul(by_cell * cells[place], forgetting * (1 - forgetting), out=into[1])
            torch.mul(by_cell * opening, 1 - change * change, out=into[2])
            torch.mul(by_last * seen, showing * (1 - showing), out=into[3])
            by_last, by_cell = by_gates[place] @ of_state, by_cell * forgetting
        flat = by_gates.view(-1, 4 * width)
        by_inputs = (flat @ of_input).view_as(inputs) if ctx.needs_input_grad[0] else None
        return (
            by_inputs,
            by_last[None],
            by_cell[None],
            flat.t() @ inputs.flatten(0, 1),
            flat.t() @ outputs[:-1].flatten(0, 1),
            flat.sum(0),
        )  # type: ignore[return-value]


def reverse(states: Tensor, lengths: Tensor) -> Tensor:
    """Reverse each sentence of ``states``, (places, sentences, …), up to its length, (sentences,).

    Padding stays at the end: packed sequences do the same, but oneDNN does not compute them.
    """
    places = torch.arange(len(states), device=states.device)[:, None]
    mirrored = torch.where(places < lengths, lengths - 1 - places, places)
    return states.gather(0, mirrored[:, :, None].expand_as(states))
