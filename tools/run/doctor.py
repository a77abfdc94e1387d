"""`cepheid doctor`: what is installed here, what each benchmark lacks, how long each would take."""

import os
import platform
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from cepheid.rules import definition, evidence, extras
from cepheid.rules.definition import Definition
from cepheid.rules.host import usable_processors
from cepheid.rules.layout import lay_out, wrap
from cepheid.tools.console.arguments import read_command
from cepheid.tools.console.program import EXIT_FINE, read_version, run_tool
from cepheid.tools.run.costs import describe_disk, describe_minutes, find_existing, find_reference

if TYPE_CHECKING:
    from cepheid.reference.machine.accelerators import Accelerators
    from cepheid.reference.torch.trainer import Trainer

COMMAND = read_command("doctor")
SYSTEMS: Mapping[str, str] = {
    "Linux": "",
    "Darwin": "runs work, but macOS cannot forget cached files (rule T6): nothing counts",
}
STEPS = 3  # that are timed, after one that is not


def main(argv: Sequence[str] | None = None) -> int:
    """Print what is there and what is missing."""
    arguments = COMMAND.parse(argv)
    is_all = list(arguments.benchmarks) == ["all"]
    named = definition.names() if is_all else arguments.benchmarks
    asked = [definition.load(name, "mini") for name in named]
    for name, what in _list_facts(arguments.data):
        print(wrap(f"{name:<12}{what}"))
    rows = [("benchmark", "lacks", "disk, GB", "run, min", "here, min")]
    for name in definition.names():
        chosen = definition.load(name, "mini")
        lacking = ", ".join(_list_lacking_extras(name)) or "nothing"
        reference = find_reference(chosen)
        here = "" if chosen not in asked or lacking != "nothing" else _estimate_minutes(chosen)
        rows.append((name, lacking, describe_disk(chosen), describe_minutes(reference), here))
    print("", *lay_out(rows), sep="\n")
    print("\nAt mini scale. run: one of our reference on two processors; here: a training,")
    print("from steps that are timed without compilation by `cepheid doctor all` or NAME.")
    missing = {name for each in definition.names() for name in _list_lacking_extras(each)}
    if missing:
        print("all of them need:")
        print(f"  {extras.format_command(sorted(missing))}")
    return EXIT_FINE


def _list_facts(data: Path) -> Iterator[tuple[str, str]]:
    import psutil

    from cepheid.reference.machine.accelerators import find_accelerators
    from cepheid.reference.machine.energy import find_sensors

    system = platform.system()
    note = SYSTEMS.get(system, "runs need Linux; checking works")
    yield "cepheid", f"{read_version()}, Python {platform.python_version()}"
    yield "system", f"{system} {platform.release()}{note and f': {note}'}"
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    yield "processors", f"{usable_processors()} usable{load}"
    memory = psutil.virtual_memory()
    yield "memory", f"{memory.available / 1e9:.0f} of {memory.total / 1e9:.0f} GB available"
    place = find_existing(data)
    free = f"{shutil.disk_usage(place).free / 1e9:,.0f} GB free"
    refusal = "" if os.access(place, os.W_OK) else "; not writable: give --data and --output"
    yield "disk", f"{free} for {data}{refusal}"
    accelerators = find_accelerators()
    yield "devices", _describe_devices(accelerators)
    sensors = find_sensors(has_gpu=accelerators is not None)
    joules = ", ".join(counter.name for counter in sensors.counters)
    yield "energy", joules or f"{sensors.reason_for_none}; docs/power.md"
    compiler = shutil.which("g++") or shutil.which("c++")
    yield "compiler", compiler or "none: runs work and are slower (Debian: apt install g++)"
    yield "make", shutil.which("make") or "none: docs/commands.md has the pip line instead"
    frameworks = ("torch", "keras", "tensorflow", "jax")
    here = [f"{name} {_read_version(name)}" for name in frameworks if _read_version(name)]
    yield "frameworks", ", ".join(here) or "none: logs can be checked, nothing can be run"


def _read_version(package: str) -> str:
    names = (package, f"{package}-cpu")
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


def _describe_devices(found: "Accelerators | None") -> str:
    if found is None:
        return "no accelerator: runs compute on the processors"
    if extras.find_missing(["torch"]):
        return f"{found}; torch, which drives them, is not installed"
    from cepheid.reference.torch.ranks.choice import find_unusable

    unusable = find_unusable()
    return f"{found}" + ("; this torch can use none of them" if unusable else "")


def _list_lacking_extras(name: str) -> list[str]:
    needed = extras.list_extras(definition.load(name, "mini").extras)
    return [each for each in needed if extras.find_missing(extras.PACKAGES_OF[each])]


def _estimate_minutes(chosen: Definition) -> str:
    """Return the minutes of a training to the target, by timed steps on noise."""
    usual = evidence.find_usual_samples(chosen)
    if chosen.kind == "generate" or usual is None:
        return "-"
    from cepheid.benchmarks import registry
    from cepheid.reference.run.config import configure
    from cepheid.reference.session.frameworks import find_create
    from cepheid.reference.torch.ranks.distributed import start_ranks

    config = configure(chosen, overrides=("compile=off", "precision=fp32"))
    with start_ranks() as ranks:
        task: Trainer = find_create(registry.import_task(chosen, "torch"))(config, ranks)
        task.build()
        seconds = min(_time_step(task) for _ in range(1 + STEPS))
    return f"{usual * seconds / 60:.1f}"


def _time_step(task: "Trainer") -> float:
    """Return the seconds that a sample takes in a step on noise."""
    from cepheid.reference.torch.warm_up import draw_noise_pieces

    pieces = draw_noise_pieces(task)
    started = time.perf_counter()
    task.accumulate(pieces)
    task.device.synchronize()
    return (time.perf_counter() - started) / sum(len(piece.inputs) for piece in pieces)


if __name__ == "__main__":
    run_tool(main)
