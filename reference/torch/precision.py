"""The precision of matrix products and convolutions; parameters and losses stay in float32."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType

import torch

TYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
)
"""The types by the names of ``--set precision=…``; fp16 needs a task that scales its loss."""


def list_candidates(device: torch.device) -> tuple[str, ...]:
    """Return the precisions worth comparing, the likely best first.

    bfloat16 is one of them where the hardware multiplies it (GPUs with bfloat16 units, CPUs with
    AVX512-BF16 or AMX). Elsewhere it is emulated.
    """
    if device.type == "cuda":
        is_native = bool(torch.cuda.is_bf16_supported(including_emulation=False))
    else:
        capabilities = (
            torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
        )
        is_native = bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
    return ("bf16", "fp32") if is_native else ("fp32",)


def autocast(precision: torch.dtype, device: torch.device) -> AbstractContextManager[object]:
    """Return the context in which a forward pass runs at ``precision``."""
    if precision is torch.float32:
        return nullcontext()
    return torch.autocast(device.type, dtype=precision)
