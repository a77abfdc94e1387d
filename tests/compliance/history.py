"""Writes synthetic logs of MLPerf rounds for tests, in both dialects: none is a published log."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

START_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Entry:
    """One record, before it is written in a dialect. ``after_ms`` passes since the one before."""

    key: str
    value: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    after_ms: int = 10

    def having(self, **metadata: Any) -> "Entry":
        """The same with other metadata; None removes a field."""
        merged = {**self.metadata, **metadata}
        return replace(self, metadata={k: v for k, v in merged.items() if v is not None})


RESNET_LARS: Mapping[str, Any] = {
    "lars_opt_base_learning_rate": 7.4, "lars_opt_end_learning_rate": 0.0001,
    "lars_opt_learning_rate_decay_poly_power": 2, "lars_opt_learning_rate_decay_steps": 1200,
    "lars_epsilon": 0, "lars_opt_learning_rate_warmup_epochs": 2, "lars_opt_momentum": 0.9,
    "lars_opt_weight_decay": 0.0002,
}  # fmt: skip
RESNET_SGD: Mapping[str, Any] = {
    "sgd_opt_base_learning_rate": 3.2, "sgd_opt_end_learning_rate": 0.0001,
    "sgd_opt_learning_rate_decay_poly_power": 2, "sgd_opt_learning_rate_decay_steps": 1200,
    "sgd_opt_weight_decay": 0.00005, "sgd_opt_momentum": 0.9, "model_bn_span": 64,
    "opt_learning_rate_warmup_epochs": 2,
}  # fmt: skip


def resnet_40(
    index: int = 0,
    *,
    division: str = "closed",
    optimizer: str = "lars",
    status: str = "success",
    epoch_ms: int = 60_000,
) -> list[Entry]:
    """A compliant ResNet-50 log of Training v4.0, in epochs; the target is reached at the third."""
    hyperparameters = {"lars": RESNET_LARS, "sgd": RESNET_SGD}[optimizer]
    last = 0.7602 if status == "success" else 0.7402
    entries = [
        Entry("submission_benchmark", "resnet"), Entry("submission_org", "acme"),
        Entry("submission_division", division), Entry("submission_status", "onprem"),
        Entry("submission_platform", "1xbox"), Entry("cache_clear", True), Entry("init_start"),
        Entry("seed", 100 + index), Entry("global_batch_size", 2048),
        Entry("gradient_accumulation_steps", 1), Entry("train_samples", 1281167),
        Entry("eval_samples", 50000), Entry("opt_name", optimizer),
        *(Entry(key, value) for key, value in hyperparameters.items()),
        Entry("init_stop", after_ms=90_000), Entry("run_start"),
    ]  # fmt: skip
    for epoch, accuracy in enumerate((0.31, 0.62, last), 34):  # as many as is plausible
        number = {"epoch_num": epoch}
        entries += [
            Entry("epoch_start", None, number),
            Entry("epoch_stop", None, number, epoch_ms + index),
            Entry("eval_start", None, number),
            Entry("eval_accuracy", accuracy + index / 1e5, number, 2_000),
            Entry("eval_stop", None, number),
        ]
    return [*entries, Entry("run_stop", None, {"status": status})]


def gnmt_06(index: int = 0, *, status: str = "success") -> list[Entry]:
    entries = [
        Entry("submission_benchmark", "gnmt"), Entry("submission_org", "acme"),
        Entry("submission_division", "closed"), Entry("submission_status", "onprem"),
        Entry("submission_platform", "1xbox"), Entry("submission_poc_name", "Ada"),
        Entry("submission_entry", "{}"), Entry("cache_clear", True), Entry("init_start"),
        Entry("global_batch_size", 1024), Entry("opt_learning_rate_alt_decay_func", True),
        Entry("opt_base_learning_rate", 0.002), Entry("opt_learning_rate_decay_interval", 809),
        Entry("opt_learning_rate_decay_factor", 0.5), Entry("opt_learning_rate_decay_steps", 4),
        Entry("opt_learning_rate_remain_steps", 6453),
        Entry("opt_learning_rate_alt_warmup_func", True),
        Entry("opt_learning_rate_warmup_steps", 200), Entry("max_sequence_length", 75),
        Entry("init_stop", after_ms=60_000), Entry("run_start"),
    ]  # fmt: skip
    for epoch, bleu in enumerate((20.1, 24.3), 1):
        number = {"epoch_num": epoch}
        entries += [
            Entry("block_start", None, {"first_epoch_num": epoch, "epoch_count": 1}),
            Entry("epoch_start", None, number),
            Entry("epoch_stop", None, number, 30_000 + index),
            Entry("eval_start", None, number),
            Entry("eval_accuracy", bleu + index / 100, number, 4_000),
            Entry("eval_stop", None, number),
            Entry("block_stop", None, {"first_epoch_num": epoch}),
        ]
    return [*entries, Entry("run_stop", None, {"status": status})]


def cosmoflow_20(index: int = 0) -> list[Entry]:
    entries = [
        Entry("submission_benchmark", "cosmoflow"), Entry("submission_org", "acme"),
        Entry("submission_division", "closed"), Entry("submission_status", "onprem"),
        Entry("submission_platform", "box"), Entry("cache_clear"), Entry("init_start"),
        Entry("number_of_nodes", 4), Entry("accelerators_per_node", 8), Entry("init_stop"),
        Entry("run_start"), Entry("staging_start"), Entry("staging_stop"),
        Entry("global_batch_size", 128), Entry("train_samples", 524288),
        Entry("eval_samples", 65536), Entry("opt_name", "sgd"),
        Entry("opt_base_learning_rate", 0.002), Entry("opt_learning_rate_warmup_epochs", 4),
        Entry("opt_learning_rate_warmup_factor", 2.0),
        Entry("opt_learning_rate_decay_boundary_epochs", [32, 64]),
        Entry("opt_learning_rate_decay_factor", 0.25),
    ]  # fmt: skip
    for epoch, error in enumerate((0.3, 0.1230), 39):
        number = {"epoch_num": epoch}
        entries += [
            Entry("epoch_start", None, number),
            Entry("eval_start", None, number, 90_000 + index),
            Entry("eval_stop", None, number),
            Entry("epoch_stop", None, number),
            Entry("eval_error", error + index / 1e5, number),
        ]
    return [*entries, Entry("run_stop", None, {"status": "success"})]


def _time(entries: Sequence[Entry], index: int) -> Iterator[tuple[int, Entry]]:
    now_ms = START_MS + index * 10_000_000
    for entry in entries:
        now_ms += entry.after_ms
        yield now_ms, entry


def mllog_lines(entries: Sequence[Entry], index: int = 0) -> list[str]:
    lines = []
    for number, (now_ms, entry) in enumerate(_time(entries, index)):
        record = {
            "namespace": "", "time_ms": now_ms, "event_type": "POINT_IN_TIME", "key": entry.key,
            "value": entry.value,
            "metadata": {"file": "train.py", "lineno": number, **entry.metadata},
        }  # fmt: skip
        lines.append(f":::MLLOG {json.dumps(record)}")
    return lines


def mll_lines(entries: Sequence[Entry], index: int = 0) -> list[str]:
    lines = []
    for number, (now_ms, entry) in enumerate(_time(entries, index)):
        metadata = {"file": "train.py", "lineno": number, **entry.metadata}
        content = json.dumps({"value": entry.value, "metadata": metadata})
        lines.append(f":::MLL {now_ms / 1000:.3f} {entry.key}: {content}")
    return lines


def write(path: Path, lines: Sequence[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def change(entries: Sequence[Entry], key: str, nth: int = 0, /, **fields: Any) -> list[Entry]:
    made = list(entries)
    at = [number for number, entry in enumerate(made) if entry.key == key][nth]
    made[at] = replace(made[at], **fields)
    return made


def drop(entries: Sequence[Entry], *keys: str) -> list[Entry]:
    return [entry for entry in entries if entry.key not in keys]


def move(entries: Sequence[Entry], key: str, before: str) -> list[Entry]:
    """A copy in which the first record of a key stands right before the first of another."""
    made = list(entries)
    entry = made.pop(next(n for n, e in enumerate(made) if e.key == key))
    made.insert(next(n for n, e in enumerate(made) if e.key == before), entry)
    return made
