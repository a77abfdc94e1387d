"""Make the weights from which mini scale starts: those of a ResNet-50 that tells trios of shapes.

    python -m cepheid.benchmarks.chest_xray.weights

trains resnet50 at mini scale, on trios (``image_files.trios``) whose shapes are not those of the
drawings, writes ``weights/mini.safetensors`` in bfloat16 without the last layer, and
prints the digest for ``benchmark.yaml``. It takes two minutes of a core. With ``--samples`` and
``--output`` it writes another checkpoint of the same training, for ``epochs.yaml``.
"""

import argparse
import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from cepheid.benchmarks.chest_xray.hyperparameters import FOLDER
from cepheid.benchmarks.chest_xray.model import LAST_LAYERS
from cepheid.benchmarks.resnet50.task import WORKLOAD
from cepheid.reference.data import generators
from cepheid.reference.run.config import RunConfig, configure
from cepheid.reference.session.frameworks import find_create
from cepheid.reference.torch.images import COUNTER
from cepheid.reference.torch.ranks.distributed import start_ranks
from cepheid.rules import definition
from cepheid.rules.definition import Block
from cepheid.rules.errors import run_script
from cepheid.rules.host import atomic_write

LEFT_OUT = LAST_LAYERS["resnet50"]
SAMPLES, SHOWN_EVERY, SEED = 44_000, 4_000, 1
SETTINGS = (  # a linear decay: what is learnt under a steeper one serves the drawings less
    *("global_batch_size=32", "model_bn_span=32", "opt_base_learning_rate=0.1"),
    *("opt_learning_rate_warmup_epochs=1", "opt_learning_rate_decay_epochs=6"),
    *("opt_learning_rate_decay_poly_power=1", "label_smoothing=0.1"),
    *("threads=1", "precision=fp32", "compile=off"),
)


def configure_pretraining(data_root: Path) -> RunConfig:
    """Return the configuration of resnet50 at mini scale with the settings of this training."""
    mini = definition.load("resnet50", "mini")
    return configure(mini, division="open", overrides=SETTINGS, data_root=data_root, seed=SEED)


def train(config: RunConfig, samples: int) -> tuple[Mapping[str, Any], float]:
    """Train on ``samples`` trios; return the network's state and its accuracy."""
    generators.prepare(config.definition.data, config.data_root)
    with start_ranks() as ranks:
        task = find_create(WORKLOAD)(config, ranks)
        task.build()
        task.warm_up()
        task.open_data()
        for first in range(0, samples, SHOWN_EVERY):
            task.train(Block(1, first, first + SHOWN_EVERY), lambda done: None)
            print(f"{first + SHOWN_EVERY:,} of {samples:,} samples", file=sys.stderr)
        return task.state()["model"], task.evaluate()["accuracy"]


def write_weights(target: Path, state: Mapping[str, Any]) -> str:
    """Write the weights of a ResNet-50, its state dict, to ``target``; return their SHA-256."""
    kept = {
        name: value.to(torch.bfloat16).contiguous()
        for name, value in state.items()
        if not name.startswith(LEFT_OUT) and COUNTER not in name
    }
    content = save(kept, metadata={"made_by": "resnet50"})
    target.parent.mkdir(exist_ok=True)
    atomic_write(target, content)
    return hashlib.sha256(content).hexdigest()


def main(argv: Sequence[str] | None = None) -> int:
    """Train, write the file and print its digest."""
    parser = argparse.ArgumentParser(prog="python -m cepheid.benchmarks.chest_xray.weights")
    parser.add_argument("--data", type=Path, default=Path("data"), help="where datasets are kept")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="seen before the checkpoint")
    parser.add_argument("--output", type=Path, default=FOLDER / "mini.safetensors")
    arguments = parser.parse_args(argv)
    state, accuracy = train(configure_pretraining(arguments.data), arguments.samples)
    digest = write_weights(arguments.output, state)
    print(f"{arguments.output}: accuracy {accuracy:.3f}\ndigest: {digest}")
    return 0


if __name__ == "__main__":
    run_script(main)
