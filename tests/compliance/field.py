"""A field of competitors for the site: scaling, batch sizes, energy, generation, hostile names."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cepheid.rules import definition
from cepheid.rules.definition import Definition
from tests.compliance.builder import (
    SYSTEM,
    generation_records,
    make_png,
    power_lines,
    put,
    run_records,
    write_log,
    write_result,
)

HOSTILE_NAME = "'\"><img src=x onerror=alert(1)>\u202e&amp;#?%2e"
HOSTILE = "<script>alert('box')</script> \"quoted\" \u202eCPU " + 20 * "long "
LONG = "x" * 10_000
GPU = {"accelerator": "Example A100", "framework": "torch 2.13.0"}
TPU = {"accelerator": "Example TPU <b>3</b>", "framework": "jax 0.9", "status": "preview"}


def describe_system(
    submitter: str, system: str, accelerators: int = 0, **more: Any
) -> dict[str, Any]:
    named = {"submitter": submitter, "system": system, "accelerators_per_node": accelerators}
    return {**SYSTEM, **named, **more}


def write_field(root: Path, mini: Definition) -> Path:
    """Submitters' folders below ``root``; returns it.

    ``cepheid/reference`` and one of two families of accelerated systems have both benchmarks;
    besides there are results at full scale and in the open division, a provisional one, and two
    that are rejected and hostile.
    """
    full, images = definition.load(mini.name, "full"), definition.load("star_images", "mini")
    reference = describe_system("cepheid", "reference")
    write_training(root, mini, reference, 20_000)
    write_generation(root, images, reference, 0.01)
    write_result(root / "cepheid", full, system=reference, blocks=lambda index: 6 + index % 2)
    for count in (1, 2, 4, 8):
        gpu = describe_system("acme", f"a100.x{count}", count, **GPU)
        write_training(root, mini, gpu, 9_000 / count**0.93, batch_size=10 if count < 4 else 20)
        write_generation(root, images, gpu, 0.004 / count)
        tpu = describe_system("bolt", f"tpu-{count}", count, **TPU)
        write_training(root, mini, tpu, 8_000 / count**0.8, batch_size=10 if count < 4 else 20)
    write_power(root / "acme" / "results" / "a100.x1" / "star_shape-mini-closed")
    picture = root / "cepheid" / "results" / "reference" / "star_shape-mini-closed"
    (picture / "pictures_0.png").write_bytes(png())
    tpu = describe_system("bolt", "tpu-1", 1, **TPU)
    write_result(root / "bolt", mini, runs=2, division="open", system=tpu)
    odd = describe_system("dodgy", "odd", processor=HOSTILE, notes=LONG)
    folder = write_result(root / "dodgy", mini, system=odd)
    for index in (1, 3):
        records = run_records(mini, index, system=odd)
        broken = put(records, "opt_name", value="<script>alert(1)</script>sgd")
        write_log(folder / f"result_{index}.txt", broken)
    write_result(root / "dodgy", mini, system=describe_system("dodgy", HOSTILE_NAME))
    return root


def write_training(
    root: Path,
    mini: Definition,
    system: Mapping[str, Any],
    block_ms: float,
    batch_size: int = 10,
    blocks: int = 3,
) -> Path:
    """A result whose runs take about ``blocks`` times ``block_ms``, one of them longer."""
    who, name = str(system["submitter"]), str(system["system"])
    folder = write_result(root / who, mini, system=system, runs=0)
    for index in range(mini.runs.required):
        wobble = 1 + 0.02 * ((7 * index + len(name)) % 5)
        records = run_records(
            mini,
            index,
            blocks=blocks + (batch_size > 10) + (index == 4),
            system=system,
            block_ms=block_ms * wobble,
            hyperparameters={"global_batch_size": batch_size},
        )
        write_log(folder / f"result_{index}.txt", records)
    return folder


def write_generation(
    root: Path, images: Definition, system: Mapping[str, Any], seconds_per_image: float
) -> Path:
    folder = write_result(root / str(system["submitter"]), images, system=system, runs=0)
    for index in range(images.runs.required):
        records = generation_records(
            images, index, system=system, seconds_per_image=seconds_per_image
        )
        write_log(folder / f"result_{index}.txt", records)
    return folder


def write_power(folder: Path) -> None:
    for path in sorted(folder.glob("result_*.txt")):
        lines = path.read_text(encoding="utf-8").splitlines()
        records = [json.loads(line.split(" ", 1)[1]) for line in lines]
        watts = {"package-0": 80.0, "gpu-0": 300.0}
        text = power_lines(records, watts, not_measured="the power supply")
        path.with_name(f"power_{path.stem.split('_')[1]}.csv").write_text("\n".join(text) + "\n")


def png(side: int = 24) -> bytes:
    rows = b"".join(b"\0" + bytes((x * y) % 256 for x in range(side)) for y in range(side))
    return make_png(side, rows)
