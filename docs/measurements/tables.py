"""The tables of docs/measurements/records.md, from the JSON files beside it.

    python docs/measurements/tables.py        writes the page from all files below this folder

A file is what a study wrote with ``--output``; each has its machine, commit, command and load.
"""

import json
import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE / "records.md"
HEAD = """\
# Measured

`docs/measurements/tables.py` writes this page from the JSON files in this folder. `make
measurements` records them on a quiet machine; [Full width without a dataset](README.md) says what
they hold. Times are medians. A load above 0.3 before a measurement began makes its times
unreliable; shares are then approximate, memory and bytes exact. At mini scale resnet50 and kfac
were measured on the pictures that they had before, of 40 × 40 pixels.
"""
PHASES = ("data", "forward", "backward", "communication", "update")
Facts = Mapping[str, Any]


def read_files(folder: Path) -> Iterator[tuple[str, Facts]]:
    """Yield the name below ``folder`` and the content of each file of a study."""
    for path in sorted(folder.rglob("*.json")):
        facts = json.loads(path.read_text(encoding="utf-8"))
        if "machine" in facts or "points" in facts:
            yield path.relative_to(folder).with_suffix("").as_posix(), facts


def list_profiles(name: str, facts: Facts) -> Iterator[list[str]]:
    """Yield a row for each profile of a step."""
    if found := facts.get("profile"):
        seconds = statistics.median(found["seconds"])
        shares, flops = found["shares"], found.get("flops", {})
        others = (f"{phase} {share:.1%}" for phase, share in shares.items() if phase not in PHASES)
        share = flops.get("share_of_peak")
        yield [
            name, str(found["global_batch_size"]), name_machine(facts), f"{1000 * seconds:,.1f}",
            *(f"{shares.get(phase, 0.0):.1%}" for phase in PHASES), ", ".join(others),
            f"{found['kernel_share']:.0%}" if found["kernels"]["on"] == "device" else "",
            f"{found['peak_bytes'] / 2**20:,.0f}",
            f"{flops['tflops_per_second']:.3g}" if flops else "",
            f"{share:.1%}" if share else "",
        ]  # fmt: skip


def list_arms(name: str, facts: Facts) -> Iterator[list[str]]:
    """Yield a row for each arm of a comparison of ways to share updates, sums or models."""
    for measured in ("update", "sums", "shared", "hosts"):
        found = facts.get(measured, {}).items()
        arms = {label: arm for label, arm in found if isinstance(arm, Mapping)}
        for label, arm in arms.items():
            seconds = statistics.median(arm["seconds"])
            ratio = statistics.median(next(iter(arms.values()))["seconds"]) / seconds
            shares, state = arm.get("shares", {}), arm.get("state_bytes")
            waits, stages = arm.get("bubble"), arm.get("formula_of_stages", 0.0)
            yield [
                name, label, f"{1000 * seconds:,.1f}", f"{ratio:.2f}",
                f"{shares['update']:.1%}" if shares else "",
                f"{statistics.median(waits):.0%} ({stages:.0%})" if waits else "",
                "" if state is None else f"{state / 2**20:.2f}",
            ]  # fmt: skip


def list_sizes(name: str, facts: Facts) -> Iterator[list[str]]:
    """Yield a row for each size of images, and each way in which ranks share them."""
    for arm in facts.get("partitions", {}).values():
        took = f"{1000 * statistics.median(arm['seconds']):,.0f}"
        yield [name, str(arm["pixels"]), arm["way"], took, f"{arm['times_as_fast']:.2f}"]


def list_ranks(name: str, facts: Facts) -> Iterator[list[str]]:
    """Yield a row for each number of ranks, with its own load."""
    for row, point in zip(facts.get("table", ()), facts.get("points", ()), strict=True):
        origin = [facts.get("commit", ""), f"{point['load_before']:.1f}"]
        rate = row["samples_per_second"]["median"]
        kept = row["efficiency"][row["input"]]["median"]
        numbers = str(row["ranks"]), f"{rate:,.4g}", f"{kept:.2f}"
        yield [Path(name).parent.name, *numbers, *origin]


def list_updates(name: str, facts: Facts) -> Iterator[list[str]]:
    """Yield a row for each step of an optimizer, of each network where several are compared."""
    groups = {"": facts} if "updates" in facts else facts.get("compared", {})
    for group, found in groups.items():
        for update in found["updates"]:
            low, high = update["ratio_quartiles"]
            made = update["counts"]["refreshes"] / update["counts"]["possible_refreshes"]
            memory = (f"{count / 2**20:,.0f}" for count in update["memory"])
            sent = update["sent_bytes"]
            far = [count for what, count in sent.items() if what.endswith("between nodes")]
            yield [
                name, name_machine(facts), ": ".join(filter(None, (group, update["name"]))),
                f"{update['baseline_milliseconds']:,.1f}", f"{update['milliseconds']:,.1f}",
                f"{update['ratio']:.2f} ({low:.2f} to {high:.2f})", f"{made:.0%}", *memory,
                *(f"{sum(each) / 2**20:,.2f}" if each else "" for each in (sent.values(), far)),
            ]  # fmt: skip


def list_rungs(name: str, facts: Facts) -> Iterator[list[str]]:
    """Yield a row for each step that makes an update of the baseline fast."""
    batch = facts.get("global_batch_size")
    for rung in facts.get("rungs", ()):
        seconds = statistics.median(rung["timing"]["seconds"])
        busy, phases_ms = rung["kernel_seconds"], rung["phases_ms"]
        yield [
            name, name_machine(facts), rung["name"], f"{1000 * seconds:,.1f}",
            f"{batch / seconds:,.4g}", f"{rung['speedup_in_all'][0]:.2f}",
            *(f"{phases_ms[phase]:,.1f}" for phase in ("forward", "backward", "update")),
            "" if busy is None else f"{1000 * (seconds - busy):,.1f}",
            f"{rung['memory'] / 2**20:,.0f}",
        ]  # fmt: skip


def list_packings(name: str, facts: Facts) -> Iterator[list[str]]:
    """Yield a row for each way to pack images, with those that were read in a second."""
    for row in facts.get("formats", ()):
        rates = (row["cold_in_order"], row["cold_shuffled"], row["cold_shared"])
        shown = (f"{statistics.median(each):,.0f}" if each else "" for each in rates)
        yield [
            name, facts["storage"], str(facts["readers"]), row["name"], *shown,
        ]  # fmt: skip


def name_machine(facts: Facts) -> str:
    """Return the accelerator of a file, or its processor."""
    machine = facts["machine"]
    return str(machine["accelerator"] or machine["processor"])


def name_origin(facts: Facts) -> list[str]:
    """Return the commit, or the beginning of the digest of the code, and the load before."""
    load, code = facts.get("load_before"), facts.get("commit") or facts.get("code_digest", "")[:12]
    return [code, "" if load is None else f"{load:.1f}"]


TABLES = {
    "A step, by phase": (
        ("file", "batch", "on", "ms", *PHASES, "other", "kernels", "MiB", "TFLOPS", "of the peak",
         "code", "load"), list_profiles,
    ),
    "Ways to share updates, sums and models": (
        ("file", "way", "ms", "times as fast as the first", "update", "bubble (by the stages)",
         "state of a rank, MiB", "code", "load"), list_arms,
    ),
    "Updates with an optimizer, beside those of SGD": (
        ("file", "on", "update", "SGD ms", "ms", "times SGD", "refreshed", "SGD MiB", "MiB",
         "MiB sent", "between nodes", "code", "load"), list_updates,
    ),
    "What makes SGD fast": (
        ("file", "on", "step", "ms", "samples/s", "times as fast as the first", "forward ms",
         "backward ms", "update ms", "without kernels, ms", "MiB", "code", "load"), list_rungs,
    ),
    "Several ranks for each image": (
        ("file", "pixels", "way", "ms", "times as fast as one rank", "code", "load"), list_sizes,
    ),
    "Images that a disk gives in a second": (
        ("file", "storage", "readers", "packing", "cold, in order", "cold, random order",
         "cold, all readers", "code", "load"), list_packings,
    ),
    "Throughput by ranks": (
        ("benchmark", "ranks", "samples/s", "efficiency", "code", "load"), list_ranks,
    ),
}  # fmt: skip


def write_page(folder: Path = HERE) -> str:
    """Return the page: a table of each kind that has files, and the commands that made them."""
    files = list(read_files(folder))
    parts = [HEAD]
    for title, (heads, list_rows) in TABLES.items():
        if rows := [
            [*row, *name_origin(facts)][: len(heads)]
            for name, facts in files
            for row in list_rows(name, facts)
        ]:
            lines = [heads, ["---"] * len(heads), *rows]
            parts += [f"## {title}\n", *(f"| {' | '.join(line)} |" for line in lines), ""]
    commands = [f"- {name}: `{facts['command']}`" for name, facts in files if facts.get("command")]
    parts += ["## Commands\n", *commands] if commands else ["Nothing is recorded yet."]
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(write_page(), encoding="utf-8")
    sys.stdout.write(f"written: {PAGE}\n")
