"""Writes compliant run logs and results from a definition, without any framework, for tests."""

import itertools
import json
import math
import random
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cepheid.rules import rcp, rounds
from cepheid.rules.definition import Definition
from cepheid.rules.digests import derive_seed
from cepheid.rules.events import MARKER, find_event_type
from cepheid.rules.hyperparameters import EVAL_OFFSET
from cepheid.rules.metrics import compute_largest_excess

Record = dict[str, Any]

SYSTEM: Mapping[str, Any] = {
    "submitter": "acme", "system": "box", "status": "available", "nodes": 1,
    "processor": "Example CPU 9000", "processor_cores_per_node": 2, "memory_gib_per_node": 8.0,
    "accelerators_per_node": 0, "accelerator": None, "operating_system": "Linux 6.1",
    "framework": "torch 2.13.0",
}  # fmt: skip


def make_png(side: int, rows: bytes) -> bytes:
    size = side.to_bytes(4)
    chunks = {b"IHDR": size + size + b"\x08\0\0\0\0", b"IDAT": zlib.compress(rows), b"IEND": b""}
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        len(content).to_bytes(4) + kind + content + zlib.crc32(kind + content).to_bytes(4)
        for kind, content in chunks.items()
    )


PNG = make_png(1, b"\0\0")
"""A picture of one dark pixel."""
README = """Prepare the data as the reference does, then start each run with its number:

    python train.py
"""
CODE_DIGEST = "c0de" * 16
DATA_DIGEST = "da7a" * 16
IMPLEMENTATION = {"framework": "torch", "device": "cpu", "precision": "fp32", "ranks": 1}
START_MS = 1_700_000_000_000
BOOT_MS = 5_000_000.0
INIT_MS, BLOCK_MS, EVAL_MS = 3_000, 20_000, 2_000


@dataclass
class LogBuilder:
    """The records of one run, one after the other, on two clocks that agree."""

    definition: Definition
    records: list[Record] = field(default_factory=list)
    now_ms: float = 0.0

    def event(self, key: str, value: object = None, **metadata: object) -> None:
        clock = {"monotonic_ms": BOOT_MS + self.now_ms}
        self.records.append({
            "namespace": "", "time_ms": START_MS + int(self.now_ms),
            "event_type": find_event_type(key), "key": key, "value": value,
            "metadata": {"file": "train.py", "lineno": 7, **metadata, **clock},
        })  # fmt: skip
        self.now_ms += 0.5

    def wait(self, milliseconds: float) -> None:
        self.now_ms += milliseconds


def run_records(
    definition: Definition,
    index: int = 0,
    *,
    blocks: int = 3,
    converged: bool = True,
    division: str = "closed",
    hyperparameters: Mapping[str, object] | None = None,
    block_ms: float = BLOCK_MS,
    system: Mapping[str, Any] = SYSTEM,
) -> list[Record]:
    """The records of a compliant run that reaches its targets after ``blocks`` blocks.

    With ``converged=False`` it is aborted after as many blocks, as a run that failed is.
    """
    if definition.kind == "generate":
        return generation_records(
            definition, index, converged=converged, division=division, system=system
        )
    log = _before_the_clock(definition, index, division, system, hyperparameters or {})
    defaults = {name: known.default for name, known in definition.hyperparameters.items()}
    values: dict[str, Any] = {**defaults, **(hyperparameters or {})}
    own = _find_own_share(definition, division, system)
    noise = random.Random(f"{own} {index}")
    log.event("run_start")
    samples = 0
    offset = int(values.get(EVAL_OFFSET, 0))
    for block in definition.schedule(int(values["global_batch_size"]), offset):
        if block.number > blocks:
            break
        samples = block.samples
        log.event("block_start", block_num=block.number, samples_count=block.first_sample)
        log.wait(block_ms * (1 + 0.03 * index) + (own and 3 * noise.random()))
        loss = 1 / (block.number + index / 7.3 + own / 3)
        log.event("block_stop", block_num=block.number, samples_count=samples, train_loss=loss)
        reached = converged and block.number == blocks
        metrics = quality(definition, block.number, reached, index, own)
        _evaluate(log, samples, metrics, epoch_num=samples / definition.train_samples)
    _stop(log, samples, converged)
    return log.records


def generation_records(
    definition: Definition,
    index: int = 0,
    *,
    counts: int | None = None,
    converged: bool = True,
    division: str = "closed",
    system: Mapping[str, Any] = SYSTEM,
    seconds_per_image: float = 0.01,
) -> list[Record]:
    """The records of a compliant run of a benchmark that generates.

    With ``counts`` it fails after so many of them. A repetition takes 10 ms and more, the more
    images the longer.
    """
    assert definition.generation is not None
    log = _before_the_clock(definition, index, division, system, {})
    own = _find_own_share(definition, division, system)
    noise = random.Random(f"{own} {index}")
    log.event("run_start")
    images = 0
    asked = zip(definition.generation.counts, definition.generation.repetitions, strict=True)
    for count, repetitions in list(asked)[:counts]:
        log.event("generation_start", images_count=count)
        sampling = [
            0.010 + 1e-4 * ((7 * n + index) % 11) + (own and 1e-4 * noise.random())
            for n in range(repetitions)
        ]
        decoding = [seconds_per_image * count * (1 + 0.01 * index)] * repetitions
        log.wait(1000 * (sum(sampling) + sum(decoding)) + 1)
        times = {"sampling_seconds": sampling, "decoding_seconds": decoding}
        log.event("generation_times", times, images_count=count)
        log.event("generation_stop", images_count=count)
        images += count * repetitions
    if counts is None:
        metrics = quality(definition, 1, converged, index, own)
        _evaluate(log, images, metrics)
    drawn = random.Random(f"images {own} {index}")
    projections = [drawn.gauss(0, 9) for _ in range(definition.generation.counts[-1])]
    _stop(log, images, converged, {"image_projections": projections} if counts is None else {})
    return log.records


def _evaluate(
    log: LogBuilder, samples: int, metrics: Mapping[str, float], **metadata: float
) -> None:
    log.event("eval_start", samples_count=samples)
    log.wait(EVAL_MS)
    first = metrics[log.definition.quality[0].metric]
    log.event("eval_accuracy", first, samples_count=samples, **metadata, metrics=metrics)
    log.event("eval_stop", samples_count=samples)


def _stop(
    log: LogBuilder,
    samples: int,
    converged: bool,
    then: Mapping[str, object] = MappingProxyType({}),  # what comes after run_stop
) -> None:
    if converged:
        log.event("run_stop", status="success", samples_count=samples)
        for key, value in then.items():
            log.event(key, value)
        log.event("data_read", log.definition.data_digest or DATA_DIGEST)
    else:
        log.event("run_stop", status="aborted", samples_count=samples, reason="out of memory")


def _find_own_share(definition: Definition, division: str, system: Mapping[str, Any]) -> float:
    """From 0 to 1, of its own for each result: what another result measured, no run repeats."""
    who = (definition.scale, division, system["submitter"], system["system"])
    if who[1:] == ("closed", SYSTEM["submitter"], SYSTEM["system"]):
        return 0.0
    return zlib.crc32(" ".join(who).encode()) / 2**32


def _before_the_clock(
    definition: Definition,
    index: int,
    division: str,
    system: Mapping[str, Any],
    hyperparameters: Mapping[str, object],
) -> LogBuilder:
    log = LogBuilder(definition, now_ms=index * 1e7)
    identity = {
        "round": "v1.0", "org": system["submitter"], "platform": system["system"],
        "division": division, "benchmark": definition.name, "scale": definition.scale,
    }  # fmt: skip
    for name, value in identity.items():
        log.event(f"submission_{name}", value)
    log.event("cache_clear", True)
    log.event("init_start")
    log.event("seed", derive_seed_of(definition, index, system), origin="derived")
    log.event("definition_digest", definition.digest)
    log.event("code_digest", CODE_DIGEST)
    log.event("data_digest", definition.data_digest or DATA_DIGEST)
    log.event("implementation", describe_implementation(system))
    log.event("train_samples", definition.train_samples)
    log.event("eval_samples", definition.evaluation_samples)
    defaults = {name: known.default for name, known in definition.hyperparameters.items()}
    values: dict[str, Any] = {**defaults, **hyperparameters}
    for name, value in values.items():
        log.event(name, value)
    if definition.kind == "generate":
        log.event("weights_digest", definition.model.get("weights_digest", "f" * 64))
    elif given := definition.find_given_weights(values):
        log.event("weights_digest", given["digest"].ljust(64, "0"))
    log.event("model_parameters", definition.count_parameters(values))
    log.wait(INIT_MS)
    log.event("init_stop")
    return log


def describe_implementation(system: Mapping[str, Any]) -> dict[str, object]:
    accelerators = system["nodes"] * system["accelerators_per_node"]
    return {
        **IMPLEMENTATION,
        "framework": system["framework"].split()[0],
        "device": "cuda" if accelerators else "cpu",
        "ranks": accelerators or system["nodes"],
    }


def derive_seed_of(definition: Definition, index: int, system: Mapping[str, Any] = SYSTEM) -> int:
    nonce, name = rounds.load("v1.0").nonce, f"{definition.name}-{definition.scale}"
    return derive_seed(nonce, system["submitter"], system["system"], name, index)


def quality(
    definition: Definition, block: int, reached: bool, index: int = 0, own: float = 0.0
) -> dict[str, float]:
    """Metrics that reach every target, or miss every one; other runs have other values."""
    metrics = {}
    for number, target in enumerate(definition.quality):
        worse = 1 if target.better == "lower" else -1
        distance = (0.5 / block + 1 / 97 + 0.001 * index) * (-0.03 if reached else 1)
        distance *= 1 + own / (70 + block)
        lowest, highest = definition.bounds.get(target.metric, (-math.inf, math.inf))
        value = target.target + worse * distance * (1 + number)
        metrics[target.metric] = min(max(value, lowest), highest)
    for name in definition.reported:
        metrics[name] = 0.5 + 0.01 * block
    return keep_relations(definition, metrics)


def keep_relations(definition: Definition, metrics: dict[str, float]) -> dict[str, float]:
    """The same metrics, as nearly as what they are allows."""
    relations, samples = definition.relations, definition.evaluation_samples
    for name, (other, origin) in relations.distances.items():
        metrics[other] = origin + metrics[name]
    for name, usual in relations.excesses.items():
        metrics |= {of: 0.9 if metrics[name] > 0 else share / 2 for of, share in usual.items()}
    for name in relations.counted:
        metrics[name] = min(round(metrics[name] * samples) / samples, 1.0)
    for name, at_50, at_75 in relations.precisions:
        metrics |= dict.fromkeys((at_50, at_75), min(1.0, 1.2 * metrics[name]))
    for name, key in relations.choices.items():
        first = definition.quality[0].metric
        left = 1 - metrics[first] / definition.bounds[first][1]
        metrics[name] = (0.9 + metrics[name] / 9) * math.log(definition.model[key]) * left
    for names in relations.ascending:
        for low, high in itertools.pairwise(names):
            metrics[high] = max(metrics[low], metrics[high])
    for name, (other, origin) in relations.distances.items():
        metrics[name] = abs(metrics[other] - origin)
    for name, usual in relations.excesses.items():
        shares = {of: metrics[of] for of in usual}
        metrics[name] = compute_largest_excess(shares, usual, samples)
    for name, parts in relations.means.items():
        metrics |= dict.fromkeys(parts, metrics[name])
    return metrics


def reference_points(
    definition: Definition, samples: Mapping[int, Sequence[int | None]], curves: bool = False
) -> rcp.ReferencePoints:
    """Points with these samples to target at each batch size; None for a run that missed.

    With ``curves`` the runs crossed their targets there. Else only the evaluation is known.
    """
    points = rcp.ReferencePoints(definition.digest)
    defaults = {name: known.default for name, known in definition.hyperparameters.items()}
    for size, counts in samples.items():
        for seed, count in enumerate(counts, 1):
            crossing = float(count) if count and curves else None
            run = rcp.Run(seed, count, (count or 0) / definition.train_samples, 1.0, {}, crossing)
            points = points.add_run({**defaults, rcp.BATCH_SIZE: size}, IMPLEMENTATION, run)
    return points


def line_of(record: Record) -> str:
    return f"{MARKER} {json.dumps(record)}"


def write_log(path: Path, records: Sequence[Record]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line_of(record) + "\n" for record in records), encoding="utf-8")
    return path


def name_task(records: Sequence[Record], digest: str) -> list[Record]:
    """Return the records of a run that also names the digest of the submitter's code."""
    at = line_number(records, "code_digest")
    named = {**records[at - 1], "key": "task_digest", "value": digest}
    return [*records[:at], named, *records[at:]]


def write_result(
    root: Path,
    definition: Definition,
    *,
    runs: int | None = None,
    division: str = "closed",
    system: Mapping[str, Any] = SYSTEM,
    blocks: Callable[[int], int] = lambda index: 3,
    converged: Callable[[int], bool] = lambda index: True,
    block_ms: float = BLOCK_MS,
) -> Path:
    """Write a submitter's folder with one compliant result; returns the folder of the result.

    Under ``submissions/`` the code is there too.
    """
    name = f"{definition.name}-{definition.scale}-{division}"
    folder = root / "results" / str(system["system"]) / name
    for index in range(definition.runs.required if runs is None else runs):
        records = run_records(
            definition, index, blocks=blocks(index), converged=converged(index),
            division=division, block_ms=block_ms, system=system,
        )  # fmt: skip
        write_log(folder / f"result_{index}.txt", records)
    description = root / "systems" / f"{system['system']}.json"
    description.parent.mkdir(parents=True, exist_ok=True)
    description.write_text(json.dumps(dict(system)), encoding="utf-8")
    if root.parent.name == "submissions":
        write_code(root, definition.name)
        if division == "open":
            (folder / "README.md").write_text(README.replace("python", "A smaller network. python"))
    return folder


def write_code(root: Path, benchmark: str) -> None:
    """What a submission holds beside its results: code, how to run it, and its licence."""
    folder = root / "benchmarks" / benchmark
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text("print('trained')\n")
    (folder / "README.md").write_text(README)
    (root / "LICENSE").write_text("Apache-2.0\n")


def power_lines(
    records: Sequence[Record],
    watts: Mapping[str, float],
    *,
    every_ms: float = 500.0,
    not_measured: str = "nothing",
) -> list[str]:
    """A power log: each sensor around its mean, from before init_stop until after run_stop."""
    times = {r["key"]: r["metadata"]["monotonic_ms"] for r in records}
    lines = [f"# not measured: {not_measured}", ",".join(["monotonic_ms", *watts])]
    now_ms, noise = times["init_stop"] - 1000, random.Random(times["run_stop"])
    while now_ms < times["run_stop"] + 1000:
        swing = 1 + 0.01 * noise.uniform(-1, 1)
        lines.append(",".join(map(repr, [now_ms, *(value * swing for value in watts.values())])))
        now_ms += every_ms
    return lines


def write_power(
    folder: Path, records: Sequence[Record], index: int, watts: Mapping[str, float], **how: Any
) -> Path:
    path = folder / f"power_{index}.csv"
    path.write_text("".join(f"{line}\n" for line in power_lines(records, watts, **how)))
    return path


def edit(
    records: Sequence[Record], key: str, change: Callable[[Record], object], nth: int = 0
) -> list[Record]:
    """A copy of ``records`` in which the ``nth`` record of a key was changed in place."""
    copied: list[Record] = json.loads(json.dumps(list(records)))
    matching = [record for record in copied if record["key"] == key]
    change(matching[nth])
    return copied


def put(records: Sequence[Record], key: str, nth: int = 0, /, **fields: object) -> list[Record]:
    return edit(records, key, lambda record: record.update(fields), nth)


def put_metadata(
    records: Sequence[Record], key: str, nth: int = 0, /, **fields: object
) -> list[Record]:
    return edit(records, key, lambda record: record["metadata"].update(fields), nth)


def delay(
    records: Iterable[Record], milliseconds: float, monotonic_ms: float | None = None
) -> None:
    """Move records in time, and their monotonic clock by as much or by something else."""
    for record in records:
        record["time_ms"] += int(milliseconds)
        record["metadata"]["monotonic_ms"] += milliseconds if monotonic_ms is None else monotonic_ms


def set_clocks(record: Record, other: Record, later_ms: int = 0) -> None:
    record["time_ms"] = other["time_ms"] + later_ms
    record["metadata"]["monotonic_ms"] = other["metadata"]["monotonic_ms"] + later_ms


def copy_quality(record: Record, other: Record) -> None:
    record["value"] = other["value"]
    record["metadata"]["metrics"] = other["metadata"]["metrics"]


def stretch(key: str, factor: float, nth: int) -> Callable[[list[Record]], None]:
    """Let an interval take longer by a factor: everything after it comes later."""

    def change(records: list[Record]) -> None:
        number = line_number(records, key, nth)
        took = records[number]["time_ms"] - records[number - 1]["time_ms"]
        delay(records[number:], (factor - 1) * took)

    return change


def stretch_all(key: str, factor: float) -> Callable[[list[Record]], None]:
    """Let every interval that such a record begins take longer by a factor."""

    def change(records: list[Record]) -> None:
        for nth in range(sum(record["key"] == key for record in records)):
            stretch(key, factor, nth)(records)

    return change


def find(records: Sequence[Record], key: str, nth: int = 0) -> Record:
    return records[line_number(records, key, nth) - 1]


def line_number(records: Sequence[Record], key: str, nth: int = 0) -> int:
    return [number for number, record in enumerate(records, 1) if record["key"] == key][nth]
