"""`cepheid measure`: one command whose sub-commands are the studies of the laboratory.

Under a launcher: ``torchrun --nproc-per-node 2 -m cepheid.tools.measure speed …``.
"""

import sys
from collections.abc import Mapping, Sequence

from cepheid.rules.layout import wrap
from cepheid.tools.console.program import (
    EXIT_FINE,
    EXIT_WRONG_USE,
    list_commands,
    run_command,
    run_tool,
)

STUDIES = "cepheid.measure.studies"
MEASUREMENTS: Mapping[str, tuple[str, str]] = {
    name: (f"{STUDIES}.{module}", what)
    for name, module, what in (
        ("speed", "speed.speed", "training step, harness and memory of a run"),
        ("sweep", "sweep.sweep", "times by batch size or number of images, as a paper reports"),
        ("scaling", "scaling.scaling", "how throughput grows with the number of ranks"),
        ("project", "projection.device", "the time to train on machines that are not here"),
        ("epochs", "epochs_study", "epochs to the target by batch size or by setting"),
        ("staleness", "staleness", "what old gradients cost: asynchronous SGD, simulated"),
        ("stragglers", "stragglers", "seconds to the target where one worker is slow"),
        ("costs", "costs.costs", "what each step of an optimizer costs in an update"),
        ("formats", "formats", "how fast a disk reads images, by packing"),
        ("flops", "flops", "the floating-point operations of the model for a sample"),
        ("fingerprint", "fingerprint", "whether a change of the code changed what is computed"),
        ("resolution", "resolution.resolution", "which differences a benchmark shows"),
        ("pending", "upkeep.pending", "which evidence is stale or missing, with its hours"),
        ("baselines", "shallow.baselines", "which targets shallow means reach, and margins"),
        ("targets", "targets", "whether targets separate correct from broken code"),
    )
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the measurement that the first argument names."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(wrap(_describe_measurements()))
        return EXIT_FINE if arguments else EXIT_WRONG_USE
    return run_command("cepheid measure", "measurement", MEASUREMENTS, arguments)


def _describe_measurements() -> str:
    return "\n".join(
        [
            "usage: cepheid measure NAME …        (cepheid measure NAME --help explains each)",
            "",
            "Measure the reference on this machine. No measurement writes a scored result.",
            "`cepheid rcp` measures the reference convergence points.",
            "",
            *list_commands(MEASUREMENTS),
            "",
            "examples:",
            "  cepheid measure speed galaxy_shape --scale mini",
            "  cepheid measure sweep galaxy_shape --scale mini --batch-sizes 4,32 --epochs 0.5",
            "",
            "exit codes: 0 fine; 1 a measurement failed, or missed its target; 2 wrong use",
        ]
    )


if __name__ == "__main__":
    run_tool(main)
