"""`cepheid rehearse`: what an accelerator would make of benchmarks, shown without one."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cepheid.measure.engine.options import read_command
from cepheid.measure.engine.study import Column, Measured, Request, Study, make_table
from cepheid.reference.machine.placement import find_placement
from cepheid.rules import definition as definitions
from cepheid.rules import extras
from cepheid.rules.errors import UserError

if TYPE_CHECKING:
    from cepheid.measure.rehearsal.play import Scene
    from cepheid.measure.rehearsal.stage import Remark, Report

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
STUDY = Study("rehearse", plan, measure, REPORTS, **read_command("rehearse"))
