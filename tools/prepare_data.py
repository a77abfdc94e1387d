"""`cepheid data`: prepare or verify a dataset."""

import argparse
from collections.abc import Sequence

from rules import definition
from tools.arguments import add_data_option, command_parser
from tools.cli import EXIT_FINDINGS, EXIT_FINE, run_tool

EXAMPLES = """\
examples:
  cepheid data galaxy_shape --scale mini             prepare what `cepheid run` will need
  cepheid data galaxy_shape --scale mini --verify    read every byte again and compare digests

An interrupted preparation goes on where it stopped. The same command on another machine, or with
another number of processes, makes the same galaxies.

exit codes: 0 these are the reference's data; 1 they are others; 2 wrong use, or damaged data
"""


def parser() -> argparse.ArgumentParser:
    """The command line of `cepheid data`."""
    made = command_parser(
        "data",
        "Prepare the dataset of a benchmark, or verify one that is there.",
        EXAMPLES,
    )
    add = made.add_argument
    add("benchmark", help="which benchmark's dataset (cepheid run --list names them)")
    add("--scale", default="full", help="mini or full (default)")
    add_data_option(made)
    add("--verify", action="store_true", help="digest everything that is there, prepare nothing")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Prepare or verify, then say where the dataset is and what it is."""
    arguments = parser().parse_args(argv)
    chosen = definition.load(arguments.benchmark, arguments.scale)

    from rich.console import Console

    from reference import data
    from reference.data import store
    from tools.progress import counted

    console = Console(highlight=False, soft_wrap=True)
    if arguments.verify:
        folder = data.folder(chosen.data, arguments.data)
        with counted("verifying", "samples", console) as on_progress:
            manifest = store.verify(folder, on_progress)
    else:
        with counted("preparing data", "samples", console) as on_progress:
            folder = data.prepare(chosen.data, arguments.data, on_progress)
        manifest = store.read_manifest(folder)
    size_mib = sum(array.bytes for array in manifest.arrays.values()) / 2**20
    console.print(
        f"{folder}: {manifest.rows:,} samples of {manifest.generator}, {size_mib:,.0f} MiB, "
        f"digest {manifest.digest}",
        markup=False,
    )
    if chosen.data_digest and manifest.digest != chosen.data_digest:
        console.print(f"these are not the reference's data, whose digest is {chosen.data_digest}")
        return EXIT_FINDINGS
    return EXIT_FINE


if __name__ == "__main__":
    run_tool(main)
