"""`cepheid describe-system`: describe this machine for a submission."""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cepheid.reference.machine.accelerators import (
    DEVICE,
    DEVICE_HELP,
    MODULE_HELP,
    Accelerators,
    find_accelerators,
    use_device,
)
from cepheid.reference.machine.placement import end_rank, find_placement
from cepheid.rules.documents import FILL_IN, find_unfilled
from cepheid.rules.errors import UserError
from cepheid.rules.layout import wrap
from cepheid.rules.systems import NAME, refuse_name
from cepheid.tools.console.arguments import read_command
from cepheid.tools.console.program import EXIT_FINDINGS, EXIT_FINE, run_tool, write_new

if TYPE_CHECKING:
    from cepheid.reference.machine.ranks import Ranks

NOBODY = "local"  # as `cepheid run` has it
CHOICES = (
    "status: one of available, preview, research; it says available, change it if that is wrong"
)


COMMAND = read_command("describe-system", device=DEVICE_HELP, module=MODULE_HELP)


def main(argv: Sequence[str] | None = None) -> int:
    """Describe this machine, or all nodes of several ranks. Exit code 1 if the nodes differ."""
    arguments = COMMAND.parse(argv)
    use_device(arguments)
    refuse_name(arguments.submitter, "a submitter")
    from cepheid.reference.machine import system

    with _start_ranks() as ranks:
        measured = measure_peaks(ranks) if arguments.peaks else {}
        described = system.describe_all(arguments.submitter, ranks, arguments.data, measured)
        code = EXIT_FINDINGS if described.differences else EXIT_FINE
        if ranks.is_first:
            _print_description(dict(described.content), described.differences, arguments.output)
    if find_placement().world_size > 1:
        end_rank(code)
    return code


@contextmanager
def _start_ranks() -> Iterator["Ranks"]:
    """Yield the ranks of torch if it is installed, else this process without a framework."""
    try:
        from cepheid.reference.torch.ranks import choice, distributed
    except ModuleNotFoundError:
        from cepheid.reference.machine.ranks import SingleProcess

        found = find_accelerators() or Accelerators(0, "")  # nobody knows what can use them
        try:
            framework = f"jax {metadata.version('jax')}"
        except metadata.PackageNotFoundError:
            framework = FILL_IN + "framework and version"
        yield SingleProcess(framework, found.name or None, usable=found.count)
        return
    if choice.find_unusable():  # they are listed, and the processors are described
        os.environ[DEVICE] = os.environ.get(DEVICE) or "cpu"
    with distributed.start_ranks() as ranks:
        yield ranks


def describe_machine(submitter: str, data: Path) -> dict[str, Any]:
    """Return a description of this machine with all its accelerators."""
    from cepheid.reference.machine import system

    with _start_ranks() as ranks:
        return system.describe_all(submitter, ranks, data, measure_peaks(ranks)).content


def measure_peaks(ranks: "Ranks") -> Mapping[str, Any]:
    """Measure the peaks of the first rank's device; every rank must call this.

    Nothing is measured without torch, or where kernels fail, as on a device whose memory other work
    has: a message says so.
    """
    try:
        from cepheid.reference.torch.backend import measure_peaks as measure
        from cepheid.reference.torch.devices.kinds import find_device
        from cepheid.reference.torch.ranks.distributed import TorchRanks
    except ModuleNotFoundError:
        print("no peaks were measured: torch is not installed", file=sys.stderr)
        return {}
    measured: dict[str, Any] = {}
    try:
        if ranks.is_first and isinstance(ranks, TorchRanks):
            measured = measure(find_device(ranks.device))
    except RuntimeError as error:  # also of too little memory
        first_line = str(error).partition("\n")[0]
        what = ranks.accelerator or "the processors"
        print(f"no peaks were measured on {what}: {first_line}", file=sys.stderr)
    ranks.barrier()
    return measured


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write a description. Raises UserError where there is a file already."""
    write_new(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def _print_description(
    content: dict[str, Any], differences: Sequence[str], output: Path | None
) -> None:
    if output:
        content["system"] = _name_system(output)
        write(output, content)
        print(output)
    else:
        print(json.dumps(content, indent=2, ensure_ascii=False), flush=True)
    from cepheid.reference.machine.system import find_unused

    lines = []
    if unused := find_unused(content):
        lines.append(f"{content['framework']} cannot use, and this leaves out: {unused}")
    lines += [f"the nodes differ in {difference}" for difference in differences]
    lines.append("a person must fill in or check:")
    if content["submitter"] == NOBODY:
        lines.append("  submitter: the name of who submits; --submitter sets it")
    lines += [f"  {key}: {what}" for key, what in find_unfilled(content)]
    text = wrap("\n".join([*lines, f"  {CHOICES}"]))
    print(text, file=sys.stderr if output is None else sys.stdout)


def _name_system(output: Path) -> str:
    if not (output.suffix == ".json" and NAME.fullmatch(output.stem)):
        raise UserError(
            f"--output {os.fspath(output)!r}: expected <system>.json, where <system> has at most "
            "64 letters, digits, '.', '_' and '-' (rule S1)"
        )
    refuse_name(output.stem, "a system")
    return output.stem


if __name__ == "__main__":
    run_tool(main)
