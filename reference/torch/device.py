"""The device of a rank: which one it is, what it can do, and how the host waits for it.

``Device`` covers what ``torch.accelerator`` does: GPUs of NVIDIA, AMD, Intel and Apple, and what a
vendor has brought into torch. Where one differs, a subclass says so: in ``devices/kinds.py``, or in
a vendor's own module (docs/your-device.md). No other module names a kind of accelerator.
"""

import gc
import inspect
import os
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
import torch.distributed as dist
from torch import Tensor

from cepheid.reference.run.execution import USUAL
from cepheid.reference.torch.devices.values import Values, enter_guard


@dataclass(frozen=True)
class Device(Values):
    """A device that a rank drives. A vendor's subclass changes what is different there.

    The constants are sizes of work that keeps all its units busy: the side of square matrices, the
    bytes of a copy that no cache holds, the images that a decoder makes together.
    """

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
        """Return the file of a vendor's class, None for one of ours."""
        is_ours = cls.__module__.startswith(f"{__package__}.")
        return None if is_ours else Path(inspect.getfile(cls))

    @property
    def kind(self) -> str:
        """What ``--device`` calls such devices, by default as torch does."""
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
            with enter_guard():
                torch.accelerator.synchronize(self.place)

    def finish_step(self) -> None:
        """Take note that a pass or an update is issued: lazy devices compute it now."""

    def empty_pinned(self, *shape: int) -> Tensor:
        """Return memory of the host, of any shape, that is copied fast."""
        return torch.empty(shape, pin_memory=self.pins)

    def fork_rng(self) -> AbstractContextManager[None]:
        """Return a context after which all generators are as they were before it."""
        return torch.random.fork_rng([self.place], device_type=self.place.type)

    @property
    def captures(self) -> bool:
        """Whether there are graphs: of any accelerator from torch 2.13 on."""
        try:
            return bool(torch.accelerator.Graph())
        except (AttributeError, RuntimeError):  # of an earlier torch, or of another device
            return False

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Return what repeats all operations of ``run`` as one graph; ``run`` where none can be.

        They always read and write the same tensors. ``run`` is called once before.
        """
        if not self.captures:
            return run
        graph: Any = torch.accelerator.Graph()
        run()  # whatever is set up at first must not be captured
        self.synchronize()
        with torch.Stream(self.place), graph:
            run()
        return graph.replay

    def peak_bytes(self) -> int:
        """Return the most bytes that were allocated at once."""
        return int(torch.accelerator.max_memory_allocated(self.place))

    def allocated_bytes(self) -> int:
        """Return the bytes that are allocated now."""
        return int(torch.accelerator.memory_allocated(self.place))

    def forget_peak(self) -> None:
        """Let ``peak_bytes`` count from now on."""
        torch.accelerator.reset_peak_memory_stats(self.place)

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

    def list_convolutions(self) -> Sequence[str]:
        """Return the ways to find a kernel for a convolution, the usual one first."""
        return (USUAL,)

    def use_convolutions(self, way: str) -> None:
        """Find the kernels of convolutions in that way from now on."""

    def describe_products(self) -> Mapping[str, Any]:
        """Return what a log says of products in float32 where kinds of them may differ."""
        return {}

    def autocast(self, precision: torch.dtype) -> AbstractContextManager[object]:
        """Return the context in which a forward pass runs at ``precision``."""
        if precision is torch.float32:
            return nullcontext()
        return torch.autocast(self.place.type, dtype=precision)

    @property
    def _module(self) -> Any:
        """The module of torch for such devices, None where there is none."""
        return getattr(torch, self.place.type, None)
