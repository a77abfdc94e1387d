"""The precision of matrix products and convolutions; parameters and losses stay in float32."""

from contextlib import AbstractContextManager, nullcontext

import torch


def choose(requested: str, device: torch.device) -> torch.dtype:
    """float32 or bfloat16: ``auto`` takes bfloat16 where the hardware multiplies it natively."""
    if requested == "auto":
        return torch.bfloat16 if has_fast_bfloat16(device) else torch.float32
    return {"fp32": torch.float32, "bf16": torch.bfloat16}[requested]


def has_fast_bfloat16(device: torch.device) -> bool:
    """True for GPUs with bfloat16 units and CPUs with AVX512-BF16 or AMX."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def autocast(precision: torch.dtype, device: torch.device) -> AbstractContextManager[object]:
    """The context in which a forward pass runs at ``precision``."""
    if precision is torch.float32:
        return nullcontext()
    return torch.autocast(device.type, dtype=precision)
