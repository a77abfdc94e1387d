"""`cepheid measure fingerprint`: show whether a change of the code changed what is computed."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cepheid.rules import definition as definitions
from cepheid.rules.errors import UserError, cannot_read
from cepheid.tools.console import writing
from cepheid.tools.console.arguments import add_data_option, make_command_parser
from cepheid.tools.console.program import EXIT_FINDINGS, EXIT_FINE, run_tool

if TYPE_CHECKING:
    from cepheid.measure.studies.fingerprint import Fingerprint, Record

DESCRIPTION = """\
Take the fingerprint of each benchmark at mini scale: train seven steps on 48 samples in fp32 with
two evaluations (or generate a few images), and print a digest of weights, losses and metrics. It
takes seconds for each benchmark.

Where the fingerprint before a change of the code equals the one after it, the same seed still
gives the same bits, and what was recorded before (evidence, reference points) is still true.

--cases all also trains under settings that take other code: micro-batches, bf16, fp16, spans of
batch norm, shared updates, images, layers and matrices, on one rank and on two. It resumes each
from its first block, and takes minutes. Use it for a change of what all benchmarks share.
"""
EXAMPLES = """\
examples:
  cepheid measure fingerprint                              all benchmarks
  cepheid measure fingerprint ssd gnmt
  cepheid measure fingerprint --output before.json         keep them, then change the code
  cepheid measure fingerprint --against before.json        show which benchmarks compute otherwise
  cepheid measure fingerprint ssd --cases all              ssd under many settings, on 1 and 2 ranks

With another version of PyTorch, or a processor with other vector instructions, bits differ by
rounding; there --against compares losses and metrics within one part in a thousand.

exit codes: 0 taken, and equal to those of --against; 1 some differ; 2 wrong use
"""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of `cepheid measure fingerprint`."""
    parser = make_command_parser("measure fingerprint", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("benchmarks", nargs="*", metavar="BENCHMARK", help="which benchmarks (default: all)")
    add(
        "--cases",
        choices=("plain", "all"),
        default="plain",
        help="plain: each benchmark in fp32 on one rank; all: also other settings and two ranks",
    )
    add("--output", type=Path, metavar="FILE.json", help="write the fingerprints there too")
    add("--against", type=Path, metavar="FILE.json", help="compare with what --output wrote before")
    add_data_option(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Take the fingerprints and compare them. Exit code 1 where one differs."""
    arguments = make_parser().parse_args(argv)
    names = arguments.benchmarks or definitions.names()
    for name in names:
        definitions.load(name, "mini")

    from cepheid.measure.studies import fingerprint, fingerprint_cases

    before = _read_record(arguments.against) if arguments.against else None
    machine = fingerprint.describe_machine()
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    taken, changed = {}, 0
    labels = list(names)
    if arguments.cases == "all":
        labels += [case.name for name in names for case in fingerprint_cases.list_cases(name)]
    width = max(map(len, labels))
    for name in names:
        fingerprints = [fingerprint.take_fingerprint(name, arguments.data)]
        if arguments.cases == "all":
            fingerprints += fingerprint_cases.take_cases(name, arguments.data)
        for now in fingerprints:
            taken[now.name] = now
            verdict = ""
            if before is not None:
                is_alike = before.machine == machine
                is_changed, verdict = _compare(now, before, is_same_machine=is_alike)
                changed += is_changed
            shown = f"{now.name:<{width}}  {now.digest}  {_describe_values(now)}"
            print(f"{shown}  {verdict}".rstrip(), flush=True)
    if arguments.output:
        record = fingerprint.Record(machine, taken)
        writing.replace_file(arguments.output, json.dumps(record.as_json(), indent=1) + "\n")
    return EXIT_FINDINGS if changed else EXIT_FINE


def _read_record(path: Path) -> "Record":
    from cepheid.measure.studies.fingerprint import parse_record

    try:
        return parse_record(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise cannot_read(path, error) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        fix = "give a file that `cepheid measure fingerprint --output` wrote"
        raise UserError(f"{path}: this is no record of fingerprints; {fix}") from error


def _compare(now: "Fingerprint", before: "Record", is_same_machine: bool) -> tuple[bool, str]:
    """Return whether a benchmark computes otherwise than before, and a phrase that says so."""
    from cepheid.measure.studies.fingerprint import find_difference

    earlier = before.fingerprints.get(now.name)
    if earlier is None:
        return False, "not in the earlier file"
    if difference := find_difference(now, earlier, is_same_machine):
        return True, f"differs: {difference}"
    is_equal = now.digest == earlier.digest
    return False, "same bits" if is_equal else "same within rounding"


def _describe_values(fingerprint: "Fingerprint") -> str:
    """Return the first loss (or metric) and the last metric, which tell one change from another."""
    named = list(fingerprint.values.items())
    return ", ".join(f"{name} {value:.6g}" for name, value in dict([named[0], named[-1]]).items())


if __name__ == "__main__":
    run_tool(main)
