"""A device that computes on the CPU, and that torch takes for an accelerator.

A ``PretendTensor`` claims to lie on the device and holds a tensor on the CPU. While ``pretend`` is
entered, every operation of torch comes here: it is judged as an accelerator would, and computed on
what the tensors hold. So values are real ones, as on no ``meta`` device, and mistakes show that a
CPU hides: tensors on two devices, hosts that wait, copies, float64.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple, NoReturn
from weakref import WeakSet

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

from cepheid.measure.rehearsal.ledger import COPY, FLOAT64, WAIT, Ledger
from cepheid.rules.errors import UserError

KIND = "pretend"
CPU = torch.device("cpu")
Operation = Any  # torch._ops.OpOverload
_ledger = Ledger()
_call: Callable[..., Any] | None = None


@contextmanager
def call_by(call: Callable[..., Any]) -> Iterator[None]:
    """Let ``call(operation, kernel, args, kwargs)`` run the operations of the device."""
    global _call
    _call = call
    try:
        yield
    finally:
        _call = None


def open_ledger() -> Ledger:
    """Return the ledger that is written to now."""
    return _ledger


class MixedDevicesError(RuntimeError):
    """Tensors of one operation lie on two devices, which an accelerator refuses."""


class _Module(_DummyBackendModule):
    """What torch asks of ``torch.pretend``: the generator of the CPU draws for it."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def get_rng_state(self, device: object = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: object = None) -> None:
        return


@cache
def offer_device() -> torch.device:
    """Make the device known to torch, before any backward pass of the process; return it.

    Raises UserError where another device has the one place that torch has for such devices.
    """
    taken = torch._C._get_privateuse1_backend_name()
    if taken != "privateuseone":
        raise UserError(
            f"torch has loaded a plug-in for the device {taken}, and has no place for another one; "
            "fix: set TORCH_DEVICE_BACKEND_AUTOLOAD=0, and leave --device-module out"
        )
    _setup_privateuseone_for_python_backend(KIND, backend_module=_Module())
    return torch.device(KIND, 0)


_Tensor: Any = Tensor  # torch declares its hooks without the first argument


_pinned: WeakSet[Any] = WeakSet()  # storages of the host from which copies overlap with work
_generators: set[int] = set()  # by what torch keeps of them: operations see other objects


def make_generator() -> Any:
    """Return a generator of the device, which draws what one of the CPU does."""
    made: Any = torch.Generator()
    _generators.add(made._cdata)
    return made


class PretendTensor(_Tensor):  # type: ignore[misc]
    """A tensor that claims the pretend device and ``held`` another one on the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "PretendTensor":
        """Make one around a tensor on the CPU, of its shape, strides and type."""
        made: PretendTensor = _Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(),
            dtype=held.dtype, device=offer_device(),
        )  # fmt: skip
        made.held = held
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, operation: Operation, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return compute(operation, args, kwargs or {})

    def __tensor_flatten__(self) -> tuple[list[str], None]:  # lets nn.Module.to swap parameters
        return ["held"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> "PretendTensor":
        return PretendTensor(inner["held"])

    def __repr__(self) -> str:
        return f"PretendTensor({self.held!r})"

    def __reduce_ex__(self, protocol: Any) -> Any:  # to a file, as for every device by the host
        _ledger.note(WAIT, "saved")
        return self.held.detach().__reduce_ex__(protocol)

    def tolist(self) -> Any:
        """Return the values, for which the host waits."""
        _ledger.note(WAIT, "tolist")
        return self.held.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Raise TypeError, as for every tensor that is not on the CPU."""
        raise TypeError(f"can't convert {self.device} device type tensor to numpy; use .cpu()")


def _replace(mine: PretendTensor, values: Any) -> None:
    """Hold other values from now on: what ``tensor.data = …`` asks for."""
    _DATA.__set__(mine, values)
    mine.held = values.held


_DATA: Any = Tensor.__dict__.get("data") or torch._C.TensorBase.__dict__["data"]
PretendTensor.data = property(Tensor.detach, _replace)


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(
        self, operation: Operation, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return compute(operation, args, kwargs or {})


@contextmanager
def pretend(ledger: Ledger) -> Iterator[torch.device]:
    """Yield the pretend device; write what happens on it to ``ledger``."""
    global _ledger
    before, _ledger = _ledger, ledger
    lifts = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(…, device=…) is a copy
    try:
        with _Mode():
            yield offer_device()
    finally:
        torch._C._set_only_lift_cpu_tensors(lifts)
        _ledger = before


def pretend_in_thread() -> None:
    """Pretend in this thread too, as long as it lives, where another one does."""
    if threading.current_thread() is not threading.main_thread():
        _Mode().__enter__()


class Traits(NamedTuple):
    """What is known of an operation whatever its arguments."""

    name: str
    is_view: bool  # or makes memory without values
    asks_host: bool  # its result, or the shape of it, depends on values
    takes_scalars: bool  # of the CPU beside tensors of another device


# Kernels that check on the host whether they have succeeded, as those of CUDA do.
_CHECKED = ("_linalg_check_errors", "_linalg_eigh", "_linalg_svd", "linalg_eig", "linalg_lstsq")
_WITHOUT_VALUES = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "set_",
                   "detach", "alias", "lift_fresh", "_reshape_alias", "resize_")  # fmt: skip
_BETWEEN = ("copy_", "_to_copy", "_foreach_copy_", "lift_fresh", "set_")
_INDEXES = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index")
_TAKE_SCALARS = ("fill_", "masked_fill", "masked_fill_", "index_put_", "index_put", "full_like",
                 "_index_put_impl_")  # fmt: skip


@cache
def read_traits(operation: Operation) -> Traits:
    """Return the traits of an operation, from its schema and torch's tags."""
    schema, tags = operation._schema, set(operation.tags)
    name = schema.name.rpartition("::")[2]
    aliases = [each.alias_info for each in schema.returns if each.alias_info]
    is_view = any(not each.is_write for each in aliases) or name in _WITHOUT_VALUES
    by_values = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    asks = (bool(tags & by_values) and name not in _INDEXES) or name in _CHECKED
    is_scalar = torch.Tag.pointwise in tags or name in _TAKE_SCALARS
    takes_scalars = is_scalar or name.startswith(("_foreach_", "_fused_", "_amp_"))
    return Traits(name, is_view, asks, takes_scalars)


def compute(operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Judge an operation and compute it on the CPU; return what it returns on the device."""
    if operation is torch.ops.prim.device.default:
        return args[0].device
    given, form = tree_flatten((args, dict(kwargs)))
    ours = [each for each in given if isinstance(each, PretendTensor)]
    asked = kwargs.get("device")
    is_ours = bool(ours) if asked is None else torch.device(asked).type == KIND
    traits = read_traits(operation)
    if ours or is_ours:
        _judge(operation, traits, args, kwargs)
    held_args, held_kwargs = tree_unflatten([_hold(each) for each in given], form)
    is_pinned = held_kwargs.pop("pin_memory", None)  # no CPU has such memory
    with _disable_current_modes():
        kernel = _KERNELS.get(operation, operation)
        if _call and (ours or is_ours):
            result = _call(operation, kernel, held_args, held_kwargs)
        else:
            result = kernel(*held_args, **held_kwargs)
    if is_pinned or operation is torch.ops.aten._pin_memory.default:
        _pinned.add(result.untyped_storage())
    known = {id(each.held): each for each in ours}
    is_new = is_ours and not traits.is_view
    if is_new:
        _ledger.count()

    def wrap(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) in known:
            return known[id(value)]
        if not is_ours:
            return value
        if is_new and value.dtype == torch.float64:
            _ledger.note(FLOAT64, traits.name)
        return PretendTensor(value)

    return tree_map(wrap, result)


def _hold(value: Any) -> Any:
    """Return what the CPU computes with instead."""
    if isinstance(value, PretendTensor):
        return value.held
    return CPU if isinstance(value, torch.device) and value.type == KIND else value


def _judge(
    operation: Operation, traits: Traits, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Note what an accelerator would punish. Raises MixedDevicesError for what all refuse."""
    if traits.name in ("_to_copy", "copy_"):
        _judge_copy(traits.name, args, kwargs)
    elif traits.asks_host and kwargs.get("output_size") is None:
        _ledger.note(WAIT, traits.name)
    elif traits.name in _INDEXES:
        indices = [each for each in args[1] if each is not None]
        if any(each.dtype in (torch.bool, torch.uint8) for each in indices):
            _ledger.note(WAIT, f"{traits.name} by a mask")
        if any(not isinstance(each, PretendTensor) for each in indices):
            _ledger.note(COPY, f"{traits.name} by an index of the host")
    elif traits.name not in _BETWEEN and operation.namespace == "aten":
        _refuse_mixed(operation, traits, args, kwargs)


def _judge_copy(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Note a copy between host and device for which the host waits."""
    if name == "copy_":
        target, source, *more = args
        is_short = bool(more and more[0]) or kwargs.get("non_blocking", False)
        goes_there = isinstance(target, PretendTensor)
    else:
        source, asked = args[0], kwargs.get("device")
        is_short = kwargs.get("non_blocking", False)
        kind = torch.device(asked).type if asked is not None else source.device.type
        goes_there, is_short = kind == KIND, is_short or kind == "meta"
    comes_from_there = isinstance(source, PretendTensor)
    if goes_there == comes_from_there or (is_short and (comes_from_there or _is_pinned(source))):
        return
    if comes_from_there:
        _ledger.note(WAIT, "a copy to the host")
    else:
        _ledger.note(COPY, f"a copy to the device{' from memory that is not pinned' * is_short}")


def _is_pinned(values: Tensor, *device: Any) -> bool:
    """Return whether a copy of values overlaps with work."""
    return values.untyped_storage() in _pinned


def _refuse_mixed(
    operation: Operation, traits: Traits, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    given = tree_flatten((args, dict(kwargs)))[0]
    tensors = [each for each in given if isinstance(each, Tensor)]
    for each in tensors:
        is_scalar = traits.takes_scalars and each.dim() == 0
        if not isinstance(each, PretendTensor) and not is_scalar and tensors != [each]:
            _refuse(operation, f"a tensor on {each.device} of shape {tuple(each.shape)}")
    generator = kwargs.get("generator")
    if generator is not None and generator._cdata not in _generators:
        _refuse(operation, "a generator of the CPU")


def _refuse(operation: Operation, what: str) -> NoReturn:
    raise MixedDevicesError(
        f"{_ledger.find_place()}: {operation} on {KIND}:0 got {what}; fix: use one of the device"
    )


def _run_lstm_cell(
    from_inputs: Tensor, from_hidden: Tensor, cell: Tensor,
    input_bias: Tensor | None = None, hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the next hidden state and cell, (n, units), and the gates for the backward pass."""
    gates = from_inputs + from_hidden
    if input_bias is not None and hidden_bias is not None:
        gates = gates + input_bias + hidden_bias
    into, forget, update, out = gates.chunk(4, 1)
    into, forget, out = into.sigmoid(), forget.sigmoid(), out.sigmoid()
    update = update.tanh()
    following = forget * cell + into * update
    return out * following.tanh(), following, torch.cat([into, forget, update, out], 1)


def _run_lstm_cell_backward(
    of_hidden: Tensor | None, of_cell: Tensor | None, cell: Tensor, following: Tensor,
    gates: Tensor, has_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of the gates before their functions, of the cell, and of the bias."""
    into, forget, update, out = gates.chunk(4, 1)
    height = following.tanh()
    of_hidden = torch.zeros_like(cell) if of_hidden is None else of_hidden
    of_following = of_hidden * out * (1 - height * height)
    if of_cell is not None:
        of_following = of_following + of_cell
    of_gates = torch.cat(
        [
            of_following * update * into * (1 - into),
            of_following * cell * forget * (1 - forget),
            of_following * into * (1 - update * update),
            of_hidden * height * out * (1 - out),
        ],
        1,
    )
    of_bias = of_gates.sum(0) if has_bias else torch.empty(0)
    return of_gates, of_following * forget, of_bias


# What accelerators compute and a CPU does not, or in another way.
_KERNELS: Mapping[Operation, Callable[..., Any]] = {
    torch.ops.aten._thnn_fused_lstm_cell.default: _run_lstm_cell,
    torch.ops.aten._thnn_fused_lstm_cell_backward_impl.default: _run_lstm_cell_backward,
    torch.ops.aten._pin_memory.default: lambda values, *device: values.clone(),
    torch.ops.aten.is_pinned.default: _is_pinned,
}
