"""The time to train on machines that are not here: `cepheid measure project`."""

from pathlib import Path

from cepheid.measure.engine import options
from cepheid.measure.engine.options import Option
from cepheid.measure.engine.study import Study
from cepheid.measure.studies.projection import device, published
from cepheid.measure.studies.projection.cost_model import SHAPES, read_links
from cepheid.measure.studies.projection.known import FILE, list_known, load_families

DESCRIPTION = f"""\
Predict the time to train on N devices with a cost model: the seconds of a step and of a sample,
the bytes of the gradients over links of which latency and rate are known, evaluation, and the
samples to the target by batch size. What a step and a sample take follows from published times:

  --published         each published time is predicted from those of other sizes, with its error
  --like FAMILY       a device with your peak, bandwidth and links: minutes, kWh and cost, each in
                      a range, from the published times of a family

Benchmarks: {", ".join(sorted(list_known()))}
({FILE} of a benchmark, and measure/studies/projection/*_times.yaml).

The global batch grows with the devices up to the largest whose epochs were published; more devices
share it.

Links: {", ".join(read_links())}
(measure/studies/projection/links.yaml has their sources).
"""
EXAMPLES = """\
examples:
  cepheid measure project resnet50 --published --figure published.png
  cepheid measure project resnet50 --like h100 --peak 312 --bandwidth 2039 --within nvlink3 \\
      --between infiniband_hdr --devices 1,8,64,512,2048 --watts 800 --idle-watts 300 --price 1.5
      a device of 312 TFLOP/s and 2,039 GB/s that draws 800 W, or 300 W while it waits, and
      costs 1.5 an hour

exit codes: 0 fine; 2 wrong use
"""
MOST_DEVICES = 2**20
DEVICES = tuple(2**power for power in range(12))


STUDY = Study(
    "project",
    lambda request: load_families(request.arguments.benchmark),
    published.predict_published,
    figure=published.draw_published,
    others=(device.STUDY,),
    description=DESCRIPTION,
    examples=EXAMPLES,
    options=(
        Option("benchmark", "which benchmark"),
        Option("--published", "predict each published time from those of other sizes (default)",
               bool, group="what"),
        Option("--like FAMILY", "answer for a device, from the published times of a family",
               group="what"),
        Option("--peak TFLOPS", "of the device with --like, dense, in the precision of training "
               "(default: that of the family)", float, least=1e-3, most=1e6, needs="--like"),
        Option("--bandwidth GB", "of its memory, in 10^9 bytes a second (default: as --peak)",
               float, least=1e-3, most=1e6, needs="--like"),
        Option("--watts W", "what a device draws, with its part of the node", float, least=1e-3,
               needs="--like"),
        Option("--idle-watts W", "what it draws while it waits for others (default: as --watts)",
               float, least=0, needs="--watts"),
        Option("--price X", "what a device costs in an hour, in any currency", float, least=1e-6,
               needs="--like"),
        options.offer_numbers(
            "--devices N,…", "numbers of devices with --like (default: 1, 2, 4, … 2,048)",
            "8,64,512", DEVICES, most=MOST_DEVICES,
        ),
        Option("--within LINK", "links in a node (default: those of the family)", needs="--like"),
        Option("--between LINK", "links between nodes (default: those of the family)",
               needs="--like"),
        Option("--devices-per-node K", "default: as in the family", int, least=1, needs="--like"),
        Option("--sum", "how gradients are summed: rings in nodes and a tree or rings (nodes) "
               "between them, one ring, or rings along rows and columns of a torus "
               "(default: as in the family)", more={"choices": SHAPES}, needs="--like"),
        Option("--batch-size B", "samples of a device (default: the most of the family)", int,
               least=1, needs="--like"),
        Option("--figure FILE", "draw the prediction as PNG", Path),
        Option("--output FILE", "write all numbers as JSON", Path),
    ),
)  # fmt: skip
