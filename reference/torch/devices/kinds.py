"""The kinds of devices: processors, GPUs of NVIDIA and AMD, GPUs of Apple."""

import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self, cast

import torch
import torch.distributed as dist

from cepheid.reference.run.execution import SEARCHED, USUAL
from cepheid.reference.torch.device import Device
from cepheid.reference.torch.devices.values import classes


class Processor(Device):
    """All processors that this process may use."""

    matrix_side = 1024
    copied_bytes = 2**27
    images_together = 100
    pins = captures = False  # calls cost a processor little
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

    captures = True

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

    def list_convolutions(self) -> Sequence[str]:
        """Return also a search: cuDNN or MIOpen times all its kernels at the first call."""
        return (USUAL, SEARCHED)

    def use_convolutions(self, way: str) -> None:
        """Search for the fastest kernel of each shape, or take what the library holds for best."""
        torch.backends.cudnn.benchmark = way == SEARCHED

    def describe_products(self) -> Mapping[str, Any]:
        """Return ``fp32_precision`` of the three kinds of products: ieee or tf32."""
        rounds = dict.fromkeys(("conv", "rnn"), torch.backends.cudnn.allow_tf32)
        rounds["matmul"] = torch.backends.cuda.matmul.allow_tf32
        return {"fp32_precision": {k: "tf32" if v else "ieee" for k, v in rounds.items()}}

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Return what repeats all operations of ``run`` as one CUDA graph."""
        now, aside = torch.cuda.current_stream(self.place), torch.cuda.Stream(self.place)
        aside.wait_stream(now)
        with torch.cuda.stream(aside):  # what a backward pass keeps there would disturb the graph
            run()
        now.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        return graph.replay


class Mps(Device):
    """The GPU of an Apple processor, which has no float64 and shares the memory of the machine."""

    pins = has_float64 = False

    @property
    def name(self) -> str:
        """The name of the processor."""
        find = getattr(torch.backends.mps, "get_name", None)
        return str(find()) if find else "Apple GPU"

    @property
    def identity(self) -> str:
        """The name of the machine, which has one."""
        return platform.node()


classes.update(cpu=Processor, cuda=Cuda, mps=Mps)  # any other type is a plain ``Device``


def find_device(place: torch.device) -> Device:
    """Return the device at a place of torch."""
    return find_class(place.type)(place)


def find_class(kind: str) -> type[Device]:
    """Return the class of a type of torch's devices."""
    return cast(type[Device], classes.get(kind, Device))


def register(device: Device) -> None:
    """Let ``find_device`` return devices of this class for places of its type."""
    classes[device.place.type] = type(device)
