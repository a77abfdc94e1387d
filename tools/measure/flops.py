"""`cepheid measure flops`: the floating-point operations of a model for a sample."""

import argparse
from collections.abc import Sequence

from cepheid.rules import definition as definitions
from cepheid.rules import extras
from cepheid.tools.console.arguments import add_benchmark, add_data_option, make_command_parser
from cepheid.tools.console.program import EXIT_FINDINGS, EXIT_FINE, run_tool

DESCRIPTION = """\
Count the floating-point operations that the model of a benchmark needs for a sample: products of
matrices and convolutions, two operations for each multiplication and addition, as PyTorch's
torch.utils.flop_counter counts them. For a benchmark that trains: forward and backward; for one
that generates: from noise to an image. Only benchmarks whose samples have different lengths need
their dataset.

The definition states the number as flops_per_sample; results show by it what share of the peak of
their system they reach (MFU).
"""
EXAMPLES = """\
examples:
  cepheid measure flops galaxy_shape --scale mini
  cepheid measure flops resnet50

exit codes: 0 counted; 1 counted, but the definition states another number; 2 wrong use
"""
TOLERANCE = 0.01  # where the shapes depend on values or on the batch


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of `cepheid measure flops`."""
    parser = make_command_parser("measure flops", DESCRIPTION, EXAMPLES)
    add_benchmark(parser)
    add_data_option(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Count and print. Exit code 1 if the definition states another number."""
    arguments = make_parser().parse_args(argv)
    definition = definitions.load(arguments.benchmark, arguments.scale)
    extras.require_for_runs(definition.extras)

    from cepheid.measure.studies.flops import count_flops
    from cepheid.reference.torch.distributed import start_ranks

    with start_ranks() as ranks:
        found = count_flops(definition, ranks, arguments.data)
    parts = f"forward {found.forward:,}, backward {found.total - found.forward:,}; "
    print(f"{found.total:,} operations for a sample ({found.total / 1e9:,.4g} GFLOP)")
    print(f"  {parts if definition.kind == 'train' else ''}counted over {found.counted}")
    shares = sorted(found.by_operator.items(), key=lambda item: -item[1])
    print("  " + ", ".join(f"{name} {share:.1%}" for name, share in shares))
    stated = definition.flops_per_sample
    if stated is None:
        print(f"the definition states no flops_per_sample at {definition.scale} scale")
        return EXIT_FINE
    is_same = abs(found.total - stated) <= TOLERANCE * stated
    print(f"the definition states {stated:,}" + ("" if is_same else ", which is another number"))
    return EXIT_FINE if is_same else EXIT_FINDINGS


if __name__ == "__main__":
    run_tool(main)
