"""The device of a rank: which one it is, what it can do, and how the host waits for it.

``Device`` covers what ``torch.accelerator`` does: GPUs of NVIDIA, AMD, Intel and Apple, and what a
vendor has brought into torch. Where one differs, a subclass says so: below, or in a vendor's own
module (docs/your-device.md). No other module names a kind of accelerator.
"""

import gc
import inspect
import os
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
import torch.distributed as dist
from torch import Tensor

_guard: Callable[[], AbstractContextManager[None]] = nullcontext


def guard_waits(guard: Callable[[], AbstractContextManager[None]]) -> None:
    """Enter ``guard()`` around all waits of the host from now on: it names a rank that is lost."""
    global _guard
    _guard = guard


@dataclass(frozen=True)
class Device:
    """A device that a rank drives. A vendor's subclass changes what is different there.

    The constants are sizes of work that keeps all its units busy: the side of square matrices, the
    bytes of a copy that no cache holds, the images that a decoder makes together.
    """

    place: torch.device

    KIND: ClassVar[str] = ""  # what ``--device`` calls it; "": as torch does
    matrix_side: ClassVar[int] = 8192
    copied_bytes: ClassVar[int] = 2**31
    images_together: ClassVar[int] = 1000
    has_streams: ClassVar[bool] = True  # which ``torch.futures`` follow

    @classmethod
    def find_all(cls) -> Sequence[Self]:
        """Return the devices of this kind that this process may use."""
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        if accelerator is None:
            return ()
        numbers = range(torch.accelerator.device_count())
        return [cls(torch.device(accelerator.type, number)) for number in numbers]

    def use(self) -> None:
        """Make the device torch's current one."""
        torch.accelerator.set_device_index(self.place)

    @classmethod
    def find_code(cls) -> Path | None:
        """Return the file of a vendor's class, None for the classes of this module."""
        return None if cls.__module__ == __name__ else Path(inspect.getfile(cls))

    @property
    def kind(self) -> str:
        """What ``--device`` calls such devices: cpu, cuda (NVIDIA and AMD), xpu or mps."""
        return self.KIND or self.place.type

    @property
    def is_accelerator(self) -> bool:
        """Whether it stands beside the processors, which logs then call by its name."""
        return True

    @property
    def name(self) -> str:
        """The name of the product, as its vendor gives it."""
        find = getattr(self._module, "get_device_name", None)
        return str(find(self.place)) if find else self.kind

    @property
    def sensor_keys(self) -> Sequence[str]:
        """What a sensor of energy may know it by: UUID, then the address on the PCI bus."""
        find = getattr(self._module, "get_device_properties", None)
        facts: Any = find(self.place) if find else None
        uuid = str(getattr(facts, "uuid", ""))
        if not hasattr(facts, "pci_bus_id"):
            return [uuid] if uuid else []
        domain, bus, number = facts.pci_domain_id, facts.pci_bus_id, facts.pci_device_id
        return [uuid, f"{domain:04x}:{bus:02x}:{number:02x}.0"]

    @property
    def identity(self) -> str:
        """What tells the device from all others, also of other machines.

        Where torch does not know, no device is told from one that another process sees.
        """
        uuid, address = (*self.sensor_keys, "", "")[:2]
        return uuid or f"{platform.node()} {address or f'{os.getpid()} {self.place}'}"

    @property
    def backend(self) -> str:
        """The backend of ``torch.distributed`` by which such devices speak, for example nccl."""
        known = dist.Backend.default_device_backend_map.get(self.place.type, "gloo")
        return "gloo" if known == "fake" else known  # torch's own tests offer that one for all

    @property
    def versions(self) -> Mapping[str, str]:
        """The libraries below torch that compute here, by name."""
        return {}

    # Work and memory:

    @property
    def pins(self) -> bool:
        """Whether copies from pinned memory of the host overlap with work."""
        return torch.accelerator.is_available()

    def synchronize(self) -> None:
        """Wait until the device has computed what it was given; name a rank that is lost."""
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is not None and self.place.type == accelerator.type:
            with _guard():
                torch.accelerator.synchronize(self.place)

    def fetch(self, values: Tensor) -> Tensor:
        """Return values of any shape on the host, after a wait; name a rank that is lost."""
        with _guard():
            return values.cpu()

    def finish_step(self) -> None:
        """Take note that a pass or an update is issued: lazy devices compute it now."""

    def to_device(self, values: Tensor) -> Tensor:
        """Return values of any shape on the device; the host does not wait for pinned ones."""
        return values.to(self.place, non_blocking=True)

    def empty_pinned(self, *shape: int) -> Tensor:
        """Return memory of the host, of any shape, that is copied fast."""
        return torch.empty(shape, pin_memory=self.pins)

    def make_generator(self) -> torch.Generator:
        """Return a generator of random numbers on the device."""
        return torch.Generator(self.place)

    def fork_rng(self) -> AbstractContextManager[None]:
        """Return a context after which all generators are as they were before it."""
        return torch.random.fork_rng([self.place], device_type=self.place.type)

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Return what repeats all operations of ``run`` as one graph; ``run`` where none can be.

        They always read and write the same tensors. torch 2.13 has graphs of any accelerator.
        """
        try:
            graph: Any = torch.accelerator.Graph()
        except (AttributeError, RuntimeError):  # of an earlier torch, or of another device
            return run
        run()  # whatever is set up at first must not be captured
        self.synchronize()
        with torch.Stream(self.place), graph:
            run()
        return graph.replay  # type: ignore[no-any-return]

    def peak_bytes(self) -> int:
        """Return the most bytes that were allocated at once."""
        return int(torch.accelerator.max_memory_allocated(self.place))

    def release(self) -> None:
        """Give memory that no tensor uses back, whose pieces may not fit what comes next."""
        gc.collect()
        if torch.accelerator.is_available():
            torch.accelerator.empty_cache()

    def is_out_of_memory(self, error: RuntimeError) -> bool:
        """Return whether ``error`` is that of too little memory, of the device or the machine."""
        lacks = re.search(r"out of memory|can't allocate memory", str(error), re.IGNORECASE)
        return isinstance(error, torch.OutOfMemoryError) or lacks is not None

    # Precision:

    def list_precisions(self) -> Sequence[str]:
        """Return the precisions worth comparing, the likely best first.

        bfloat16 is one of them where the hardware multiplies it; elsewhere it is emulated.
        """
        check = getattr(self._module, "is_bf16_supported", None)
        is_native = check is not None and check(including_emulation=False)
        return ("bf16", "fp32") if is_native else ("fp32",)

    def use_precision(self, name: str) -> None:
        """Multiply float32 as the precision ``name`` says from now on: rounded for tf32 alone."""

    def describe_products(self) -> Mapping[str, Any]:
        """Return what a log says of products in float32 where kinds of them may differ."""
        return {}

    def autocast(self, precision: torch.dtype) -> AbstractContextManager[object]:
        """Return the context in which a forward pass runs at ``precision``."""
        if precision is torch.float32:
            return nullcontext()
        return torch.autocast(self.place.type, dtype=precision)

    def widen(self, values: Tensor) -> Tensor:
        """Return values of any shape in float64, in which sums are exact."""
        return values.double()

    def make_sums(self, *shape: int) -> Tensor:
        """Return zeros of any shape where ``widen`` puts values, to be added to."""
        return self.widen(torch.zeros(shape, device=self.place))

    @property
    def _module(self) -> Any:
        """The module of torch for such devices, None where there is none."""
        return getattr(torch, self.place.type, None)


class Processor(Device):
    """All processors that this process may use."""

    matrix_side = 1024
    copied_bytes = 2**27
    images_together = 100
    pins = False
    is_accelerator = False

    @classmethod
    def find_all(cls) -> Sequence[Self]:
        """Return all processors as one device, which the ranks of a machine share."""
        return (cls(torch.device("cpu")),)

    def use(self) -> None:
        """Return at once: no processor is the current one."""

    def synchronize(self) -> None:
        """Return at once: a processor has computed what it was given."""

    def fork_rng(self) -> AbstractContextManager[None]:
        """Return a context after which the generator is as it was before it."""
        return torch.random.fork_rng([])

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Return ``run``: calls cost a processor little."""
        return run

    def release(self) -> None:
        """Leave the memory to the allocator of the system."""

    def list_precisions(self) -> Sequence[str]:
        """Return bfloat16 first where AVX512-BF16 or AMX multiplies it, else float32 alone."""
        find = getattr(torch.cpu, "get_capabilities", None)
        has = find() if find else {}
        is_native = has.get("avx512_bf16") or has.get("amx_bf16")
        return ("bf16", "fp32") if is_native else ("fp32",)


class Cuda(Device):
    """A GPU of NVIDIA, or of AMD, whose ROCm is ``cuda`` to torch."""

    @property
    def versions(self) -> Mapping[str, str]:
        """CUDA or ROCm, cuDNN or MIOpen, NCCL or RCCL, as torch was built with them."""
        has_hip = torch.version.hip is not None
        read: dict[str, Any] = {
            "rocm" if has_hip else "cuda": torch.version.hip or torch.version.cuda,
            "miopen" if has_hip else "cudnn": torch.backends.cudnn.version(),
        }
        if dist.is_nccl_available():
            version = torch.cuda.nccl.version()
            read["rccl" if has_hip else "nccl"] = ".".join(map(str, version))
        return {name: str(version) for name, version in read.items() if version}

    def list_precisions(self) -> Sequence[str]:
        """Return the same with TF32, which NVIDIA's GPUs have from compute capability 8.0 on."""
        known = super().list_precisions()
        if torch.version.hip or torch.cuda.get_device_capability(self.place) < (8, 0):
            return known
        return (*known[:-1], "tf32", known[-1])

    def use_precision(self, name: str) -> None:
        """Let convolutions, LSTMs and products of matrices multiply alike: in TF32, or exactly."""
        torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
        torch.backends.cudnn.allow_tf32 = name == "tf32"

    def describe_products(self) -> Mapping[str, Any]:
        """Return ``fp32_precision`` of the three kinds of products: ieee or tf32."""
        rounds = dict.fromkeys(("conv", "rnn"), torch.backends.cudnn.allow_tf32)
        rounds["matmul"] = torch.backends.cuda.matmul.allow_tf32
        return {"fp32_precision": {k: "tf32" if v else "ieee" for k, v in rounds.items()}}

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Return what repeats all operations of ``run`` as one CUDA graph."""
        run()
        self.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        return graph.replay


class Mps(Device):
    """The GPU of an Apple processor, which has no float64 and shares the memory of the machine."""

    pins = False

    @property
    def name(self) -> str:
        """The name of the processor."""
        find = getattr(torch.backends.mps, "get_name", None)
        return str(find()) if find else "Apple GPU"

    @property
    def identity(self) -> str:
        """The name of the machine, which has one."""
        return platform.node()

    def to_device(self, values: Tensor) -> Tensor:
        """Return values of any shape on the device, those in float64 as float32."""
        narrow = torch.float32 if values.dtype == torch.float64 else values.dtype
        return values.to(self.place, narrow)

    def widen(self, values: Tensor) -> Tensor:
        """Return values of any shape in float64 on the host."""
        return self.fetch(values).double()


_CLASSES: dict[str, type[Device]] = {"cpu": Processor, "cuda": Cuda, "mps": Mps}
"""By torch's types of devices; a type that is not here is a plain ``Device``."""


def find_device(place: torch.device) -> Device:
    """Return the device at a place of torch."""
    return find_class(place.type)(place)


def find_class(kind: str) -> type[Device]:
    """Return the class of a type of torch's devices."""
    return _CLASSES.get(kind, Device)


def register(device: Device) -> None:
    """Let ``find_device`` return devices of this class for places of its type."""
    _CLASSES[device.place.type] = type(device)


def to_device(values: Any, place: torch.device) -> Tensor:
    """Return an array or a tensor at a place of torch, in the same shape and type."""
    tensor = values if isinstance(values, Tensor) else torch.from_numpy(values)
    return find_device(place).to_device(tensor)


def widen(values: Tensor) -> Tensor:
    """Return values of any shape in float64, on their device or, where it has none, on the host."""
    return find_device(values.device).widen(values)


def make_constant(
    values: tuple[float, ...], place: torch.device, dtype: torch.dtype | None = None
) -> Tensor:
    """Return ``values``, (n,), at ``place``, to be read only.

    They are copied there once: the host waits for such a copy, which no step should.
    """
    if torch.compiler.is_compiling():  # it makes a constant of its own
        return torch.tensor(values, dtype=dtype, device=place)
    return _keep_constant(values, place, dtype)


@lru_cache(maxsize=256)
def _keep_constant(
    values: tuple[float, ...], place: torch.device, dtype: torch.dtype | None
) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=place)
