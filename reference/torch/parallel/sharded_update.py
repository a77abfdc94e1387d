"""Weight-update sharding: each rank updates a part of every weight and holds its state.

Gradients are reduced and scattered in buckets during the backward pass, the optimizer updates this
rank's part of each weight, and the new weights are gathered (Kumar et al. 2019, arXiv:1909.09756,
section 2; Xu et al. 2020, arXiv:2004.13336). PyTorch's ``fully_shard`` does the same with other
layouts; ``docs/scaling/weight-update.md`` says why it does not fit.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.futures import Future
from torch.optim import SGD, Adam, AdamW, Optimizer

from cepheid.reference.optim.lars import Lars, find_norms
from cepheid.reference.torch.parallel.mesh import RankMesh
from cepheid.reference.torch.ranks.collectives import all_reduce, detect_lost_rank

ELEMENTWISE = (SGD, Adam, AdamW)
Phase = Callable[[str], AbstractContextManager[object]]


class ShardedUpdate:
    """The update of a model's weights, shared by the ranks of ``mesh``.

    ``optimizer`` is of type ``kind``. It sees this rank's part of each weight; in its state dict,
    which all ranks must ask for together, every part is whole again, as that of an optimizer on one
    rank. So it can be loaded on any number of ranks. Frozen weights stay whole and as they are.

    If ``is_ahead``, the weights of later layers still travel while the next forward pass begins.
    A module must then read only its own weights and those of the first bucket (autograd finds a
    weight that changes after its use). ``phase`` is entered where the ranks exchange weights.
    """

    def __init__(
        self,
        model: nn.Module,
        mesh: RankMesh,
        kind: type[Optimizer],
        groups: Sequence[Mapping[str, Any]],
        phase: Phase,
        bucket_bytes: int,
        is_ahead: bool = False,
        **options: Any,
    ) -> None:
        if kind not in (*ELEMENTWISE, Lars):
            raise TypeError(f"{kind.__name__} may need whole weights; only Lars says how")
        self._mesh, self._phase, self.is_ahead = mesh, phase, is_ahead
        weights = [weight for group in groups for weight in group["params"]]
        places = {weight: place for place, weight in enumerate(weights)}
        # Gradients are ready in about the reverse order of the weights, as in torch's DDP.
        self._names: dict[Tensor, str] = {
            w: name for name, w in model.named_parameters() if w in places and w.requires_grad
        }
        in_order = list(reversed(self._names))
        self.buckets = [
            _Bucket(part, [places[weight] for weight in part], mesh)
            for part in _cut_into_buckets(in_order, bucket_bytes)
        ]
        pieces: dict[Tensor, Tensor] = {}
        for bucket in self.buckets:
            pieces.update(zip(bucket.weights, bucket.pieces, strict=True))
        parts = [
            {**group, "params": [pieces[w] if w.requires_grad else w for w in group["params"]]}
            for group in groups
        ]
        self.optimizer = kind(parts, **options)
        if isinstance(self.optimizer, Lars):
            self.optimizer.find_norms = _find_whole_norms
        self.optimizer.register_step_post_hook(lambda *_: self._share_weights())
        self.optimizer.register_state_dict_post_hook(self._gather_state)
        self.optimizer.register_load_state_dict_pre_hook(self._scatter_state)
        self._is_syncing, self._is_expected, self._sent = True, False, 0
        self._observe(model)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Leave the gradients of the backward passes in this context on their ranks."""
        before, self._is_syncing = self._is_syncing, False
        try:
            yield
        finally:
            self._is_syncing = before

    def reduce_gradients(self) -> None:
        """Average the gradients over the ranks and give the optimizer this rank's part."""
        while self._sent < len(self.buckets):
            self._send_next()
        self._sent, self._is_expected = 0, False
        for bucket in self.buckets:
            bucket.receive_gradients()

    def receive_weights(self) -> None:
        """Wait for all weights that other ranks have updated."""
        _receive(self.buckets)

    def _observe(self, model: nn.Module) -> None:
        """Have the model's gradients sent when they are ready, and its weights received."""
        bucket_of = {weight: bucket for bucket in self.buckets for weight in bucket.weights}
        for weight, bucket in bucket_of.items():
            weight.register_post_accumulate_grad_hook(partial(self._note_gradient, bucket))
        for module in model.modules():
            own = [bucket_of[w] for w in module.parameters(recurse=False) if w in bucket_of]
            needed = dict.fromkeys([*own, *(self.buckets[-1:] if module is model else [])])
            if needed:
                module.register_forward_pre_hook(partial(_receive, tuple(needed)))
        model.register_state_dict_pre_hook(lambda *_: self.receive_weights())
        model.register_load_state_dict_pre_hook(lambda *_: self.receive_weights())

    def _note_gradient(self, bucket: "_Bucket", _: Tensor) -> None:
        if not self._is_syncing:
            return
        if not self._is_expected:
            self._is_expected = True
            Variable._execution_engine.queue_callback(
                self.reduce_gradients  # at the end of the backward pass, as in torch's DDP
            )
        bucket.missing -= 1
        while self._sent < len(self.buckets) and not self.buckets[self._sent].missing:
            self._send_next()

    def _send_next(self) -> None:
        bucket = self.buckets[self._sent]
        for weight in bucket.weights:
            if weight.grad is None:
                raise RuntimeError(
                    f"{self._names[weight]} has no gradient, because the loss does not depend on "
                    "it: an update that ranks share needs all; fix: freeze it (requires_grad_)"
                )
        self._sent += 1
        bucket.gradients = self._mesh.reduce_scatter(bucket.take_gradients())

    def _share_weights(self) -> None:
        """Start to send this rank's part of each weight, those of the first layers first."""
        with self._phase("gather"):
            for bucket in reversed(self.buckets):
                bucket.arriving = self._mesh.all_gather(bucket.join(bucket.pieces))
            if not self.is_ahead:
                self.receive_weights()

    def _gather_state(self, _: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        state = {place: dict(values) for place, values in state_dict["state"].items()}
        for bucket in self.buckets:
            found = [state.get(place, {}) for place in bucket.places]
            for key in sorted(
                {key for values in found for key in values if _is_spread(key, values)}
            ):
                owners = [values if _is_spread(key, values) else {} for values in found]
                parts = [
                    values.get(key, torch.zeros_like(piece))
                    for values, piece in zip(owners, bucket.pieces, strict=True)
                ]
                with detect_lost_rank():
                    rows = self._mesh.all_gather(bucket.join(parts)).wait()
                wholes = [torch.empty_like(weight) for weight in bucket.weights]
                bucket.unpack(rows, wholes)
                for values, whole in zip(owners, wholes, strict=True):
                    if values:
                        values[key] = whole
        return {**state_dict, "state": state}

    def _scatter_state(self, _: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        state = {place: dict(values) for place, values in state_dict["state"].items()}
        for bucket in self.buckets:
            for k, place in enumerate(bucket.places):
                values = state.get(place, {})
                for key in filter(partial(_is_spread, values=values), values):
                    whole = torch.empty_like(bucket.weights[k]).copy_(values[key])
                    values[key] = bucket.cut(whole, k).clone()
        return {**state_dict, "state": state}


class _Bucket:
    """Weights that travel together, as a matrix with a row per rank and columns for each weight.

    A weight of n elements has ⌈n / ranks⌉ columns. ``pieces`` are what this rank's row has of the
    weights; they share the weights' memory. ``places`` are those in the optimizer's state dict.
    """

    def __init__(self, weights: Sequence[Tensor], places: Sequence[int], mesh: RankMesh) -> None:
        self.weights, self.places = weights, places
        self._row, self._rows = mesh.place, mesh.size
        self._widths = [-(-weight.numel() // mesh.size) for weight in weights]
        self._starts = list(accumulate(self._widths, initial=0))
        pieces = (self.cut(weight.detach(), k) for k, weight in enumerate(weights))
        self.pieces = [nn.Parameter(piece) for piece in pieces]
        self.missing = len(weights)
        self.gradients: Future[Tensor] | None = None
        self.arriving: Future[Tensor] | None = None

    def cut(self, whole: Tensor, k: int) -> Tensor:
        """Return this rank's part of ``whole``, which has the layout of weight ``k``: a view (n,).

        The part may be shorter on the last ranks, or empty.
        """
        width = self._widths[k]
        return _flatten(whole)[self._row * width : (self._row + 1) * width]

    def take_gradients(self) -> Tensor:
        """Return the gradients of the weights as a matrix, flat, and free them."""
        matrix = self.weights[0].new_zeros(self._rows, self._starts[-1])
        wholes = []
        for weight in self.weights:
            assert weight.grad is not None
            has_layout = weight.grad.stride() == weight.stride()
            whole = weight.grad if has_layout else torch.empty_like(weight).copy_(weight.grad)
            wholes.append(whole)
            weight.grad = None
        there, here = self._pair(matrix, wholes)
        torch._foreach_copy_(there, here)
        self.missing = len(self.weights)
        return matrix.flatten()

    def receive_gradients(self) -> None:
        """Wait for this rank's part of the summed gradients; give the mean to the pieces."""
        assert self.gradients is not None
        row = self.gradients.wait() / self._rows
        self.gradients = None
        for start, piece in zip(self._starts, self.pieces, strict=False):
            piece.grad = row[start : start + len(piece)]

    def receive_weights(self) -> None:
        """Wait for the weights that other ranks have updated, if they are on their way."""
        if self.arriving is not None:
            arriving, self.arriving = self.arriving, None
            self.unpack(arriving.wait(), [weight.detach() for weight in self.weights])

    def join(self, pieces: Sequence[Tensor]) -> Tensor:
        """Return ``pieces``, (n,) each, as this rank's row of the matrix."""
        row = self.weights[0].new_zeros(self._starts[-1])
        for start, piece in zip(self._starts, pieces, strict=False):
            row[start : start + len(piece)] = piece.detach()
        return row

    def unpack(self, rows: Tensor, wholes: Sequence[Tensor]) -> None:
        """Copy a matrix, flat, into ``wholes``, which have shapes and layouts of the weights."""
        there, here = self._pair(rows.view(self._rows, -1), wholes)
        torch._foreach_copy_(here, there)

    def _pair(self, matrix: Tensor, wholes: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return views of the same elements in ``matrix`` and in ``wholes``."""
        there, here = [], []
        for start, width, whole in zip(self._starts, self._widths, wholes, strict=False):
            flat = _flatten(whole)
            full, rest = divmod(len(flat), width)
            there.append(matrix[:full, start : start + width])
            here.append(flat[: full * width].view(full, width))
            if rest:
                there.append(matrix[full, start : start + rest])
                here.append(flat[full * width :])
        return there, here


def _flatten(whole: Tensor) -> Tensor:
    """Return a view (n,) of a dense tensor, in the order of its memory: channels may be last."""
    return whole.as_strided((whole.numel(),), (1,), whole.storage_offset())


def _cut_into_buckets(weights: Sequence[Tensor], bucket_bytes: int) -> Iterator[list[Tensor]]:
    """Yield ``weights`` in order, in parts of at most ``bucket_bytes`` or of a single weight.

    All weights of a part have the same type.
    """
    bucket: list[Tensor] = []
    for weight in weights:
        is_full = sum(each.nbytes for each in bucket) + weight.nbytes > bucket_bytes
        if bucket and (is_full or weight.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(weight)
    if bucket:
        yield bucket


def _receive(buckets: Sequence[_Bucket], *_: Any) -> None:
    with detect_lost_rank():
        for bucket in buckets:
            bucket.receive_weights()


def _is_spread(key: str, values: Mapping[str, Any]) -> bool:
    """Return whether the state ``values`` have one for each element of their weight at ``key``."""
    return isinstance(values.get(key), Tensor) and key != "step"  # which Adam has as a tensor


def _find_whole_norms(tensors: Sequence[Tensor]) -> Tensor:
    """Return the norms of tensors of which each rank has a part: (tensors,)."""
    return all_reduce(find_norms(tensors).square()).sqrt()
