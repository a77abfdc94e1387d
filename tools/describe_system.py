"""`cepheid describe-system`: write down what this machine is, for a submission."""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reference.run.placement import end_rank, find_placement
from rules.definition import NAME
from rules.documents import FILL_IN, find_unfilled
from rules.errors import UserError
from tools.arguments import add_data_option, command_parser
from tools.cli import EXIT_FINDINGS, EXIT_FINE, run_tool
from tools.writing import write_new

if TYPE_CHECKING:
    from reference.run.ranks import Ranks

NOBODY = "local"  # as `cepheid run` has it
CHOICES = "status: available, preview or research; written is available, change it if it is not so"
EXAMPLES = """\
examples:
  cepheid describe-system
      this machine with all its accelerators, as JSON; what a person must add is listed below it
  cepheid describe-system --submitter acme --output submissions/acme/systems/box.json
      into a file, which is never overwritten; the system is then called box
  torchrun --nnodes 2 --nproc-per-node 8 … -m tools.describe_system --output box.json
  srun python -m tools.describe_system --output box.json
      all nodes, and the accelerators that the ranks drive; how the nodes differ is told

Then replace each text that begins with "FILL IN:", and give the file to `cepheid run --system`.
Accelerators: NVIDIA's are found by NVML (extra energy), AMD's by rocm-smi, Intel's by xpu-smi.

exit codes: 0 described; 1 described, but the nodes differ; 2 wrong use
"""


def parser() -> argparse.ArgumentParser:
    """The command line of `cepheid describe-system`."""
    made = command_parser(
        "describe-system",
        "Read what this machine, or each node of several ranks, is made of (rule S2).",
        EXAMPLES,
    )
    add = made.add_argument
    add("--submitter", default=NOBODY, help=f"whose it is (default: {NOBODY})")
    add("--output", type=Path, metavar="FILE", help="write it there; the system is named after it")
    add_data_option(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Describe, on several ranks all of their nodes. Exit code 1 if those differ."""
    arguments = parser().parse_args(argv)
    from reference.machine import system

    with _ranks() as ranks:
        told = system.describe_all(arguments.submitter, ranks, arguments.data)
        code = EXIT_FINDINGS if told.differences else EXIT_FINE
        if ranks.is_first:
            _tell(dict(told.content), told.differences, arguments.output)
    if find_placement().world_size > 1:
        end_rank(code)
    return code


@contextmanager
def _ranks() -> Iterator["Ranks"]:
    """torch's, where it is installed; else this process, whose framework a person tells."""
    try:
        from reference.torch import distributed
    except ModuleNotFoundError:
        from reference.run.ranks import SingleProcess

        yield SingleProcess(FILL_IN + "framework and version")
        return
    with distributed.start_ranks() as ranks:
        yield ranks


def this_machine(submitter: str, data: Path) -> dict[str, Any]:
    """A description of this machine with all its accelerators."""
    from reference.machine import system

    with _ranks() as ranks:
        return system.describe_all(submitter, ranks, data).content


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write a description. Raises UserError where there is a file already."""
    write_new(path, _text(content))


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _tell(content: dict[str, Any], differences: Sequence[str], output: Path | None) -> None:
    if output:
        content["system"] = _name(output)
        write(output, content)
        print(output)
    else:
        print(_text(content), end="", flush=True)
    tell = sys.stderr if output is None else sys.stdout
    for difference in differences:
        print(f"the nodes differ in {difference}", file=tell)
    print("to be filled in or looked at by a person:", file=tell)
    if content["submitter"] == NOBODY:
        print("  submitter: who submits, as --submitter", file=tell)
    for key, what in find_unfilled(content):
        print(f"  {key}: {what}", file=tell)
    print(f"  {CHOICES}", file=tell)


def _name(output: Path) -> str:
    if not (output.suffix == ".json" and NAME.fullmatch(output.stem)):
        raise UserError(
            f"--output {os.fspath(output)!r}: expected <system>.json, where the name of the system "
            "is made of letters, digits, '.', '_' and '-', at most 64 (rule S1)"
        )
    return output.stem


if __name__ == "__main__":
    run_tool(main)
