"""`cepheid measure`: one command whose sub-commands are the studies of the laboratory.

Under a launcher: ``torchrun --nproc-per-node 2 -m cepheid.tools.measure speed …``.
"""

import sys
from collections.abc import Sequence

from cepheid.rules.layout import wrap
from cepheid.tools.console.arguments import read_commands
from cepheid.tools.console.program import list_commands, run_command, run_tool

MEASUREMENTS = read_commands("measure", "cepheid.measure.studies")
ABOUT = f"""\
usage: cepheid measure NAME …        (cepheid measure NAME --help explains each)

Measure the reference on this machine. No measurement writes a scored result.
`cepheid rcp` measures the reference convergence points.

{list_commands(MEASUREMENTS)}

examples:
  cepheid measure speed galaxy_shape --scale mini
  cepheid measure sweep galaxy_shape --scale mini --batch-sizes 4,32 --epochs 0.5

exit codes: 0 fine; 1 a measurement failed, or missed its target; 2 wrong use"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the measurement that the first argument names."""
    arguments = sys.argv[1:] if argv is None else argv
    about = wrap(ABOUT)
    return run_command("cepheid measure", "measurement", MEASUREMENTS, about, arguments)


if __name__ == "__main__":
    run_tool(main)
