"""`cepheid rehearse`: what an accelerator would make of benchmarks, shown without one."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cepheid.measure.engine import options
from cepheid.measure.engine.options import Option
from cepheid.measure.engine.study import Column, Measured, Request, Study, make_table
from cepheid.reference.machine.placement import find_placement
from cepheid.rules import definition as definitions
from cepheid.rules import extras
from cepheid.rules.errors import UserError

if TYPE_CHECKING:
    from cepheid.measure.rehearsal.play import Scene
    from cepheid.measure.rehearsal.stage import Remark, Report

DESCRIPTION = """\
Play benchmarks on a device that torch takes for an accelerator and that computes on the CPU, and
say what a real one would make of them. Nothing is timed, and no accelerator is needed.

At mini scale a benchmark is built, warmed up, trained for three steps on a few real samples,
evaluated, saved and restored; one that generates makes a few images. At full scale it takes two
steps on two samples of noise, and predicts; images have 448 pixels a side at most there, and 64
boxes, since more of them are the same operations. The same is played on the CPU. Found is:

  numbers     losses, metrics or weights that differ from those of the CPU by more than rounding
  an error    tensors of one operation on two devices, or whatever else ends the play
  wait        in a step, an evaluation or a generation the host waits for a value of the device
  copy        ... or until values are copied to the device, since nobody asked for non_blocking
  float64     with --without-float64: a tensor in float64 on the device

Each has the file and the line. Waits that must be are listed with a reason in
measure/rehearsal/allowed.yaml; they are shown and not counted as found.

Operations are those of a step, forward, backward and update. A host issues each in about 5 µs: a
device that computes a step faster than this waits for the host, unless a graph repeats the step.
"""
EXAMPLES = """\
examples:
  cepheid rehearse                                   all benchmarks at mini scale
  cepheid rehearse ssd kfac --scale full             the official sizes, on noise
  cepheid rehearse resnet50 --ranks 2                two ranks, in every way of sharing it has
  cepheid rehearse transformer --ranks 2 --set tensor_ranks=2
  cepheid rehearse resnet50 --task my_task.py        your own task in place of the benchmark's
  cepheid rehearse --without-float64                 whether GPUs of Apple could compute it

What it cannot show: times, memory, the rounding of your kernels, autocast, torch.compile, and
anything of a driver. docs/your-device.md says how to make a device known.

exit codes: 0 nothing was found; 1 something was; 2 wrong use
"""
LAUNCH_MICROSECONDS = 5
FLOAT64 = "float64"
MOST_NAMED = 3


def plan(request: Request) -> "Sequence[Scene]":
    """Return the scenes to play. Raises UserError for what cannot be played."""
    asked = request.arguments
    names = asked.benchmarks or definitions.names()
    if len(names) != 1 and (asked.task or asked.overrides):
        raise UserError("--task and --set are for one benchmark; fix: name the one that is meant")
    if find_placement().world_size > 1:
        raise UserError("a rehearsal starts its ranks itself; fix: --ranks N, and no launcher")
    for name in names:
        extras.require_for_runs(definitions.load(name, asked.scale).extras)
    if asked.task:
        from cepheid.reference.session.frameworks import find_own_task

        find_own_task(asked.task)
    from cepheid.measure.rehearsal.play import list_scenes

    settings = tuple(asked.overrides)
    return [
        scene
        for name in names
        for scene in list_scenes(name, asked.scale, asked.ranks, settings, asked.task)
    ]


def measure(request: Request, scenes: "Sequence[Scene]") -> Measured:
    """Play all scenes; show a row for each, and each place where something happens."""
    from cepheid.measure.rehearsal.stage import rehearse

    asked, reports = request.arguments, []
    for scene in scenes:
        print(f"rehearsing {scene}", file=sys.stderr, flush=True)
        reports.append(rehearse(scene, request.data_root, asked.ranks, not asked.without_float64))
    is_fine = all(report.is_fine for report in reports)
    facts = {"is_fine": is_fine, "rehearsals": [_as_json(report) for report in reports]}
    allowed, found = _list_places(reports)
    tables = [
        make_table("", allowed),
        make_table("found, and not allowed:" if found else "", found),
    ]
    notes = [
        f"{report.scene} ended early: {report.failure}" for report in reports if report.failure
    ]
    ranks = f" on {asked.ranks} ranks" if asked.ranks > 1 else ""
    title = f"{asked.scale} scale{ranks}, on the pretend device"
    notes.append("nothing was found" if is_fine else "something was found")
    return Measured(reports, title, tables, notes, facts, is_fine)


def _as_json(report: "Report") -> dict[str, Any]:
    facts = asdict(report)
    if report.difference == float("inf"):
        facts["difference"] = None
    remarks = [{**asdict(each), "is_finding": each.is_finding} for each in report.remarks]
    operations = report.step_operations
    return {**facts, "remarks": remarks, "step_operations": operations, "is_fine": report.is_fine}


def _list_places(reports: "Sequence[Report]") -> tuple[list[Any], list[Any]]:
    """Return a row for each place that matters: those that are allowed, and those found."""
    seen: dict[tuple[str, ...], list[tuple[str, Remark]]] = {}
    for report in reports:
        for remark in report.remarks:
            is_shown = remark.is_judged and (remark.kind != FLOAT64 or not remark.why)
            if is_shown:
                key = remark.kind, remark.place, remark.part
                seen.setdefault(key, []).append((report.scene, remark))
    allowed: list[Any] = []
    found: list[Any] = []
    for (kind, where, part), both in sorted(seen.items()):
        scenes, remarks = zip(*both, strict=True)
        more = f" and {len(scenes) - MOST_NAMED} more" if len(scenes) > MOST_NAMED else ""
        row = {
            "where": where,
            "what": f"{kind}: {remarks[0].what}",
            "in": part,
            "times": max(remark.times for remark in remarks),
            "of": ", ".join(scenes[:MOST_NAMED]) + more,
        }
        why = remarks[0].why
        (allowed if why else found).append({**row, "why it may be": why} if why else row)
    return allowed, found


REPORTS = (
    Column("benchmark", "scene"),
    Column("numbers", "numbers"),
    Column("operations a step", "step_operations", "{:,.0f}"),
    Column(
        f"at {LAUNCH_MICROSECONDS} µs each",
        lambda report: (
            report.step_operations and report.step_operations * LAUNCH_MICROSECONDS / 1e3
        ),
        "{:,.1f} ms",
    ),
    Column("waits a step", lambda report: report.count_in_steps("wait"), "{:g}"),
    Column("copies a step", lambda report: report.count_in_steps("copy"), "{:g}"),
    Column("waits an evaluation", lambda report: report.count("wait", "evaluation")),
    Column("float64", lambda report: report.count_places("float64")),
    Column("found", lambda report: len(report.findings) + bool(report.failure)),
)
STUDY = Study(
    "rehearse",
    plan,
    measure,
    REPORTS,
    description=DESCRIPTION,
    examples=EXAMPLES,
    options=(
        Option("benchmarks BENCHMARK", "which benchmarks (default: all)", more={"nargs": "*"}),
        Option("--scale", "mini (default) or full", default="mini"),
        Option("--ranks N", "ranks on this machine, which speak as those of NCCL (default: 1)", int,
               1, least=1, most=8),
        Option("--task FILE", "a task of your own, as for `cepheid run`", Path),
        options.offer_settings(),
        Option("--without-float64", "look for float64 alone, on a device that has none", bool),
        options.FILE,
        options.DATA,
    ),
)  # fmt: skip
