"""The precision of matrix products and convolutions; parameters and losses stay in float32."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType

import torch

TYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
)
"""By the names that ``--set precision=…`` knows; fp16 needs a task that scales its loss."""


def candidates(device: torch.device) -> tuple[str, ...]:
    """What is worth comparing, likely best first: bfloat16 where the hardware multiplies it (GPUs
    with bfloat16 units, CPUs with AVX512-BF16 or AMX); elsewhere it is emulated."""
    if device.type == "cuda":
        is_native = bool(torch.cuda.is_bf16_supported(including_emulation=False))
    else:
        able = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
        is_native = bool(able.get("avx512_bf16") or able.get("amx_bf16"))
    return ("bf16", "fp32") if is_native else ("fp32",)


def autocast(precision: torch.dtype, device: torch.device) -> AbstractContextManager[object]:
    """The context in which a forward pass runs at ``precision``."""
    if precision is torch.float32:
        return nullcontext()
    return torch.autocast(device.type, dtype=precision)
