"""Where the time of a training step goes, and what it needs: `cepheid measure speed --profile`."""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cepheid.benchmarks.registry import import_task
from cepheid.measure.engine.phases import profile_steps
from cepheid.measure.engine.turns import (
    MIB,
    STEPS,
    Measurement,
    Row,
    Subject,
    fit_steps,
    take_steps,
    time_steps,
)
from cepheid.reference.machine import hardware, system
from cepheid.rules.systems import TERA, compute_share, find_peak

PROFILED_STEPS, TOP_SHOWN = 3, 8
OF_GRAPHS = "kernels of graphs"


def measure_profile(subject: Subject) -> Measurement:
    """Profile a training step by phase, and measure memory and operations."""
    task, batch = subject.task, subject.config.global_batch_size
    begun, steps = task.samples, fit_steps(task, STEPS)
    turns: list[float] = []
    with subject.count(f"turns of {steps} steps", "turns") as on_turn:
        while len(turns) < subject.rounds:
            turns.append(time_steps(task, steps))
            on_turn(len(turns), subject.rounds)
    seconds = statistics.median(turns)
    profile = profile_steps(task, subject.rounds * steps)
    shares = {**profile.shares}
    kernels = profile_kernels(task, min(steps, PROFILED_STEPS))
    peak_bytes = read_peak_bytes(subject)
    rows = [
        Row(
            what=f"step of {batch} samples",
            reference=f"{1000 * seconds:,.1f} ms",
            result=", ".join(f"{phase} {share:.1%}" for phase, share in shares.items()),
        ),
        Row("its operations", kernels.describe(seconds)),
        Row("its memory, at most", f"{peak_bytes / MIB:,.0f} MiB"),
    ]
    facts = {
        "global_batch_size": batch,
        "samples_before": begun,
        "seconds": turns,
        "seconds_profiled": profile.seconds,
        "shares": shares,
        "peak_bytes": peak_bytes,
        "kernel_share": kernels.seconds / seconds,
        "kernels": asdict(kernels),
    }
    if flops := describe_flops(subject, seconds):
        facts["flops"] = flops
        share = flops["share_of_peak"]
        of_peak = f", {share:.1%} of the peak ({flops['peak']})" if share else ""
        rows.append(Row("its arithmetic", f"{flops['tflops_per_second']:,.3g} TFLOPS{of_peak}"))
    return Measurement(rows, facts)


@dataclass(frozen=True)
class Kernels:
    """The operations of a step: shares of their time, the largest first, its sum, their number.

    They are those of the accelerator where there is one, else of the processors.
    """

    shares: Mapping[str, float]
    seconds: float
    count: float
    on: str

    def describe(self, step_seconds: float) -> str:
        """Return the longest ones, and how busy they keep an accelerator."""
        shown = [*self.shares.items()][:TOP_SHOWN]
        text = ", ".join(f"{name} {share:.1%}" for name, share in shown)
        if self.on == "cpu":
            return text
        busy = f"{self.count:,.0f} kernels, which take {self.seconds / step_seconds:.0%} of a step"
        return f"{busy}; {text}"


def profile_kernels(task: Any, steps: int = PROFILED_STEPS) -> Kernels:
    """Observe the operations of some steps."""
    from torch.profiler import profile

    with profile(acc_events=True) as profiler:  # everything that torch can observe here
        take_steps(task, steps)
    return count_operations(profiler.key_averages(), steps)


def count_operations(found: Iterable[Any], steps: int) -> Kernels:
    """Return what torch's profiler ``found`` in so many steps.

    Of an accelerator it has each time twice: at the kernel, and at the operation that issued it;
    and again at what a program marks, such as the step of an optimizer. Kernels that no operation
    issued, those of a graph, share a name.
    """
    from torch._C._autograd import DeviceType  # torch.profiler's own

    found = [each for each in found if not getattr(each, "is_user_annotation", False)]
    kernels = [each for each in found if each.device_type != DeviceType.CPU]
    operations = [each for each in found if each.device_type == DeviceType.CPU]
    kind = "device" if kernels else "cpu"
    times = {each.key: getattr(each, f"self_{kind}_time_total") for each in operations}
    counted = kernels or [each for each in operations if times[each.key]]
    total = sum(getattr(each, f"self_{kind}_time_total") for each in counted) or 1
    if kernels and (rest := total - sum(times.values())) > 0:
        times[OF_GRAPHS] = rest
    ordered = sorted(times.items(), key=lambda item: -item[1])
    shares = {name: time / total for name, time in ordered if time}
    return Kernels(shares, total / 1e6 / steps, sum(each.count for each in counted) / steps, kind)


def read_peak_bytes(subject: Subject) -> int:
    """Return the most memory that this process had: of the accelerator, else of the processors."""
    device = subject.task.device
    if device.is_accelerator:
        return int(device.peak_bytes())
    return hardware.read_peak_resident_bytes()


def describe_flops(subject: Subject, step_seconds: float) -> Mapping[str, Any]:
    """Return the rate of operations, and its share of the peak where that is known.

    Empty for a model that the definition does not count, or of which it counts the mean over sizes
    that it grows through.
    """
    definition, task = subject.config.definition, subject.task
    if len(import_task(definition, "torch").WORKLOAD.noise_samples(task.shape)) > 1:
        return {}
    parameters = sum(each.numel() for each in task.model.parameters())
    flops = definition.flops_per_sample
    if flops is None or parameters != definition.model["parameters"]:
        return {}
    samples_per_second = subject.config.global_batch_size / step_seconds
    description = system.describe("local", subject.ranks)
    peak = find_peak(description, task.implementation()["precision"])
    share = compute_share(flops, samples_per_second, peak).share if peak else None
    return {
        "flops_per_sample": flops,
        "tflops_per_second": flops * samples_per_second / TERA,
        "share_of_peak": share,
        "peak": f"{peak.precision}, {peak.basis}, {peak.tflops:g} TFLOPS" if peak else "",
    }
