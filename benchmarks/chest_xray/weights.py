"""Write the weights from which mini scale starts: those of a run of resnet50, without last layer.

    python -m cepheid.benchmarks.chest_xray.weights CHECKPOINT

reads a checkpoint of `cepheid run resnet50 --scale mini` (``checkpoints/…/run_0.pt``), writes
``weights/mini.safetensors`` in bfloat16 and prints the digest for ``benchmark.yaml``.
"""

import argparse
import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from cepheid.benchmarks.chest_xray.given import FOLDER
from cepheid.benchmarks.chest_xray.model import LAST_LAYERS
from cepheid.reference.run import checkpoint
from cepheid.reference.torch.images import COUNTER
from cepheid.rules.errors import UserError
from cepheid.rules.host import atomic_write

LEFT_OUT = LAST_LAYERS["resnet50"]


def write_weights(target: Path, state: Mapping[str, Any]) -> str:
    """Write the weights of a ResNet-50, its state dict, to ``target``; return their SHA-256."""
    kept = {
        name: value.to(torch.bfloat16).contiguous()
        for name, value in state.items()
        if not name.startswith(LEFT_OUT) and COUNTER not in name
    }
    if "conv1.weight" not in kept:
        raise UserError("the checkpoint has no ResNet-50: give one of resnet50")
    content = save(kept, metadata={"made_by": "resnet50"})
    target.parent.mkdir(exist_ok=True)
    atomic_write(target, content)
    return hashlib.sha256(content).hexdigest()


def main(argv: Sequence[str] | None = None) -> int:
    """Write the file and print its digest."""
    parser = argparse.ArgumentParser(prog="python -m cepheid.benchmarks.chest_xray.weights")
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT")
    arguments = parser.parse_args(argv)
    target = FOLDER / "mini.safetensors"
    digest = write_weights(target, checkpoint.load(arguments.checkpoint).get("model", {}))
    print(f"{target}: {target.stat().st_size / 1e6:.1f} MB\ndigest: {digest}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        print(f"cepheid: {error}", file=sys.stderr)
        sys.exit(2)
