"""`cepheid measure costs`: what each step of K-FAC costs in an update, beside its paper."""

import argparse
import json
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reference.run.frameworks import import_task
from reference.run.placement import end_rank, placement
from rules import definition
from rules.definition import Definition
from rules.errors import UserError
from tools import writing
from tools.arguments import add_data_option, add_set_option, command_parser
from tools.cli import EXIT_FINE, run_tool

if TYPE_CHECKING:
    from reference.measure.costs import Costs, Step, Update
    from reference.torch.distributed import TorchRanks

DESCRIPTION = """\
What an update with K-FAC costs, and which of its steps costs how much, as Ueno et al. 2020 tell it:

  table 1         the time of an update over that of SGD after each optimization, in turns with SGD
  figures 2 to 4  the ledger of an update: data, forward, backward, factors, communication, inverse,
                  update; and the bytes that all ranks send for K-FAC in one (what averages the
                  gradients of SGD is torch's and not counted)
  figure 5        who inverts what: seconds of each rank's inverses for 1 to 128 ranks, from the
                  measured time of each layer's
  table 3         time to target of SGD and of K-FAC: the epochs that `cepheid measure epochs` has
                  on record times the measured time of an update; and projected to more ranks

Steps that change only what travels between ranks or nodes are left out where there is but one:
start it with torchrun for these. What is projected from measured parts says so, and so does what is
reported by others: their machine is not this one.
"""
EXAMPLES = """\
examples:
  cepheid measure costs kfac
  torchrun --standalone --nproc-per-node 2 -m tools.measure costs kfac --output costs.json
  cepheid measure costs kfac --figures figures/

exit codes: 0 fine; 2 wrong use
"""
RANKS = (1, 2, 4, 8, 16, 32, 64, 128)  # of the projections
UPDATES = 10  # of each turn
PHASES = ("data", "forward", "backward", "factors", "communication", "inverse", "update")


def parser() -> argparse.ArgumentParser:
    """The command line of `cepheid measure costs`."""
    made = command_parser("measure costs", DESCRIPTION, EXAMPLES)
    add = made.add_argument
    add("benchmark", help="which benchmark; kfac has steps to cost")
    add("--scale", default="mini", help="mini (default) or full")
    add("--rounds", type=int, default=5, metavar="N", help="turns of each side (default: 5)")
    add(
        "--settle",
        type=int,
        default=60,
        metavar="N",
        help="updates before the first turn, for stale factors to find their intervals "
        "(default: %(default)s)",
    )
    add_set_option(made, "as for `cepheid run`; it holds for all")
    add("--figures", type=Path, metavar="DIR", help="draw them there")
    add("--output", type=Path, metavar="FILE", help="write all measurements as JSON")
    add_data_option(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print tables, draw."""
    from reference.measure import costs

    arguments = parser().parse_args(argv)
    chosen = definition.load(arguments.benchmark, arguments.scale)
    asked = costs.load(chosen.name)
    if arguments.rounds < 3:
        raise UserError(f"--rounds {arguments.rounds}: expected 3 or more, for a spread")
    if arguments.settle < 0:
        raise UserError(f"--settle {arguments.settle}: expected 0 or more")
    _refuse(chosen, arguments)
    _measure(chosen, asked, arguments)
    if placement().world_size > 1:
        end_rank(EXIT_FINE)
    return EXIT_FINE


def _refuse(chosen: Definition, arguments: argparse.Namespace) -> None:
    """Raises UserError, before minutes of measuring, for settings whose steps have no costs."""
    from reference.run.config import configure

    values = configure(chosen, division="open", overrides=arguments.overrides).hyperparameters
    if values["opt_preconditioner"] == "none":
        raise UserError("--set opt_preconditioner=none: that leaves no K-FAC to be costed")
    if values["kfac_inverse"] == "eigen":
        raise UserError("--set kfac_inverse=eigen: the balance is that of Cholesky inverses")


def _measure(chosen: Definition, asked: "Costs", arguments: argparse.Namespace) -> None:
    from rich.console import Console

    from reference.torch.distributed import start_ranks
    from tools.progress import prepare_data

    load = os.getloadavg()[0]
    with start_ranks() as ranks:
        console = Console(quiet=not ranks.is_first, highlight=False, soft_wrap=True)
        if ranks.is_first:
            prepare_data(chosen, arguments.data, console)
        ranks.barrier()
        nodes = ranks.world_size // ranks.ranks_per_node
        steps = [
            step
            for step in asked.steps
            if step.needs_ranks <= ranks.world_size and step.needs_nodes <= nodes
        ]
        updates = []
        for step in steps:
            console.print(f"measuring: {step.name}")
            updates.append(_update(chosen, asked.baseline, step, ranks, arguments))
        console.print("measuring: inverses, layer by layer")
        layers_ms, baseline = (
            _inverses_ms(chosen, ranks, arguments),
            _baseline(chosen, asked.baseline, ranks, arguments),
        )
        if not ranks.is_first:
            return
        found = {
            "benchmark": chosen.name,
            "scale": chosen.scale,
            "definition_digest": chosen.digest,
            "ranks": ranks.world_size,
            "global_batch_size": baseline["global_batch_size"],
            "implementation": baseline["implementation"],
            "load_before": load,
            "baseline": {"name": asked.baseline.name, "phases_ms": baseline["phases_ms"]},
            "updates": [asdict(update) | {"ratio": update.ratio} for update in updates],
            "inverses_ms": layers_ms,
            "balance": [
                {"ranks": count, "milliseconds": _balance(layers_ms, count)} for count in RANKS
            ],
        }
        found["times_to_target"] = _times(chosen, asked, updates, found)
        console.print(_as_text(asked, updates, found), markup=False)
        if load > 0.5 * (os.cpu_count() or 1):
            console.print(
                f"\nother work was running here (load {load:.1f} before this began): believe no "
                "times, and ratios with care"
            )
        if arguments.output:
            writing.replace(arguments.output, json.dumps(found, indent=1) + "\n")
            console.print(f"written: {arguments.output}", markup=False)
        if arguments.figures:
            from reference.measure.figures import costs as costs_figure

            for path in costs_figure.write(arguments.figures, asked, found):
                console.print(f"written: {path}", markup=False)


# What is measured --------------------------------------------------------------------------------


def _ready(
    chosen: Definition, step: "Step", ranks: "TorchRanks", arguments: argparse.Namespace
) -> Any:
    """The task with the settings of a step, which has trained for some updates."""
    from reference.run.config import configure

    config = configure(
        chosen,
        division="open",
        overrides=[*arguments.overrides, *step.overrides],
        data_root=arguments.data,
        seed=1,
    )
    task = import_task(chosen, "torch").create(config, ranks)
    task.build()
    task.warm_up()
    task.open_data()
    task.model.train()
    for _ in range(arguments.settle):
        task.step()
    return task


def _update(
    chosen: Definition,
    baseline: "Step",
    step: "Step",
    ranks: "TorchRanks",
    arguments: argparse.Namespace,
) -> "Update":
    """Updates in turns with the baseline's, then one ledger. Means are compared, not medians: where
    factors are stale a few updates carry the refreshes of many."""
    from reference.measure.costs import Update
    from reference.measure.turns import compare_in_turns, time_steps

    plain, task = (_ready(chosen, each, ranks, arguments) for each in (baseline, step))
    before = _refreshes(task)
    compared = compare_in_turns(
        step.name,
        arguments.rounds,
        {
            baseline.name: lambda: time_steps(plain, UPDATES),
            step.name: lambda: time_steps(task, UPDATES),
        },
    )
    pairs = zip(compared.reference.seconds, compared.baseline.seconds, strict=True)
    low, _, high = statistics.quantiles([ours / theirs for ours, theirs in pairs], n=4)
    made, possible = (now - then for now, then in zip(_refreshes(task), before, strict=True))
    sent, phases = _ledger(task, ranks)
    return Update(
        name=step.name,
        milliseconds=1000 * statistics.mean(compared.reference.seconds),
        baseline_milliseconds=1000 * statistics.mean(compared.baseline.seconds),
        ratio_quartiles=(low, high),
        phases_ms=tuple(phases),
        sent_bytes=sent,
        refreshed_share=made / possible,
    )


def _refreshes(task: Any) -> tuple[int, int]:
    """The refreshes of factors so far, and what they would be if none were stale."""
    intervals = task.kfac.intervals.values()
    return sum(each.refreshes for each in intervals), task.kfac.curvature.steps * len(intervals)


def _ledger(task: Any, ranks: "TorchRanks") -> tuple[Mapping[str, int], list[Mapping[str, float]]]:
    """Bytes that all ranks together send in an update, by purpose, and each rank's milliseconds by
    phase."""
    from reference.measure.step_profiler import StepProfiler
    from reference.torch.task import ignore_phase

    task.phase = ledger = StepProfiler(task.synchronize)
    sent: dict[str, int] = {}
    task.synchronize()
    started = time.perf_counter()
    for _ in range(UPDATES):
        task.step()
        for (purpose, _), count in (task.kfac.bytes_sent if task.kfac else {}).items():
            sent[purpose] = sent.get(purpose, 0) + count
    task.synchronize()
    total_ms = 1000 * (time.perf_counter() - started) / UPDATES
    task.phase = ignore_phase
    phases = {name: 1000 * seconds / UPDATES for name, seconds in ledger.seconds.items()}
    phases["other"] = total_ms - sum(phases.values())
    told = ranks.all_gather_object({"sent": sent, "phases": phases})
    together = {
        purpose: round(sum(each["sent"].get(purpose, 0) for each in told) / UPDATES)
        for purpose in sent
    }
    return together, [each["phases"] for each in told]


def _baseline(
    chosen: Definition, step: "Step", ranks: "TorchRanks", arguments: argparse.Namespace
) -> Mapping[str, Any]:
    """The ledger of the baseline, and how it computes."""
    task = _ready(chosen, step, ranks, arguments)
    _, phases = _ledger(task, ranks)
    told = dict(task.implementation())
    batch = task.config.global_batch_size
    return {"phases_ms": phases, "implementation": told, "global_batch_size": batch}


def _inverses_ms(
    chosen: Definition, ranks: "TorchRanks", arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    """Of each layer alone, the fastest of three: its size decides, not its values."""
    import torch

    from reference.optim.kfac import inverse
    from reference.run.config import configure

    config = configure(
        chosen, overrides=arguments.overrides, data_root=arguments.data, division="open", seed=1
    )
    task = import_task(chosen, "torch").create(config, ranks)
    task.build()
    found = []
    for layer in task.kfac.layers:
        sizes = [stat.size for stat in layer.statistics if stat.is_matrix]
        matrices = [torch.eye(size, device=layer.device) for size in sizes]
        dampings = [torch.ones((), device=layer.device)] * len(sizes)
        taken = []
        for _ in range(3):
            started = time.perf_counter()
            inverse.cholesky([layer.name] * len(sizes), matrices, dampings)
            if layer.device.type == "cuda":
                torch.cuda.synchronize(layer.device)
            taken.append(1000 * (time.perf_counter() - started))
        found.append(
            {"layer": layer.name, "sizes": sizes, "milliseconds": min(taken), "cost": layer.cost}
        )
    return found


# What follows from it ----------------------------------------------------------------------------


def _balance(layers_ms: Sequence[Mapping[str, Any]], ranks: int) -> list[float]:
    """Milliseconds of the inverses of each rank."""
    from reference.measure.costs import by_rank
    from reference.optim.kfac.owners import assigned

    owners = assigned([layer["cost"] for layer in layers_ms], ranks).of_layer
    return by_rank([layer["milliseconds"] for layer in layers_ms], owners, ranks)


def _busiest_and_first(layers_ms: Sequence[Mapping[str, Any]], ranks: int) -> tuple[float, float]:
    """Milliseconds of the inverses of the busiest rank, and of the first."""
    by_rank = _balance(layers_ms, ranks)
    return max(by_rank), by_rank[0]


def _times(
    chosen: Definition, asked: "Costs", updates: Sequence["Update"], found: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Updates and minutes to target, here and projected, of those with a run on record."""
    from reference.measure import costs, epochs

    compared = epochs.load_comparison(chosen.name, asked.comparison)
    runs = epochs.load_runs(chosen, compared)
    here = _busiest_and_first(found["inverses_ms"], found["ranks"])[1]
    last = updates[-1]
    rows = []
    for arm, milliseconds, phases in (
        (compared.arms[0], last.baseline_milliseconds, found["baseline"]["phases_ms"][0]),
        (compared.arms[-1], last.milliseconds, last.phases_ms[0]),
    ):
        made = [run.epochs for run in runs if run.arm == arm.name]
        needed = [epochs_of_run for epochs_of_run in made if epochs_of_run]
        if not needed:
            continue
        count = statistics.mean(needed) * chosen.train_samples / found["global_batch_size"]
        projected = {
            ranks: costs.projected_ms(
                phases,
                found["ranks"],
                ranks,
                _busiest_and_first(found["inverses_ms"], ranks)[0] / here,
            )
            for ranks in RANKS
            if found["ranks"] < ranks <= found["global_batch_size"]
        }
        rows.append(
            {
                "optimizer": arm.name,
                "seeds": len(made),
                "reached": len(needed),
                "epochs": statistics.mean(needed),
                "updates": count,
                "minutes": count * milliseconds / 60_000,
                "projected_minutes": {
                    ranks: count * update_ms / 60_000 for ranks, update_ms in projected.items()
                },
            }
        )
    return rows


# What is printed ---------------------------------------------------------------------------------


def _as_text(asked: "Costs", updates: Sequence["Update"], found: Mapping[str, Any]) -> str:
    parts = [
        f"Table 1: time of an update ({found['ranks']} rank(s), "
        f"{found['global_batch_size']} samples; reported: {asked.source}, {asked.published_at})",
        _table(_ratios(asked, updates)),
        "StepProfiler: milliseconds of the first rank's update, by phase (figures 2 to 4)",
        _table(_ledgers(asked, updates, found)),
        "Inverses: milliseconds of the busiest rank and of all together (figure 5, from each "
        "layer's own time)",
        _table(_balances(found)),
        "Time to target (table 3)",
        _table(_targets(found)) if found["times_to_target"] else _no_targets(asked, found),
        *([_projection(found)] if found["times_to_target"] else []),
        f"Reported, {asked.published_at.split(',')[0]}: {asked.source}, table 3. {asked.note}",
        _table([asdict(row) for row in asked.published]),
    ]
    return "\n\n".join(parts)


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    from tabulate import tabulate

    cells = [{key: "" if value is None else value for key, value in row.items()} for row in rows]
    return tabulate(cells, headers="keys", disable_numparse=True)


def _ratios(asked: "Costs", updates: Sequence["Update"]) -> list[Mapping[str, Any]]:
    published = {step.name: step.published_ms for step in asked.steps}
    base = asked.baseline.published_ms
    rows: list[Mapping[str, Any]] = []
    for update in updates:
        low, high = update.ratio_quartiles
        reported = published[update.name]
        rows.append(
            {
                "step": update.name,
                f"{asked.baseline.name} ms": f"{update.baseline_milliseconds:,.1f}",
                "ms": f"{update.milliseconds:,.1f}",
                "ratio": f"{update.ratio:.2f} ({low:.2f} to {high:.2f})",
                "reported ms": reported,
                "reported ratio": f"{reported / base:.2f}" if reported and base else None,
                "refreshed": f"{update.refreshed_share:.1%}",
                "bytes sent": f"{sum(update.sent_bytes.values()):,}",
                "of factors": f"{update.sent_bytes.get('factors', 0):,}",
            }
        )
    return rows


def _ledgers(
    asked: "Costs", updates: Sequence["Update"], found: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    measured = [(asked.baseline.name, found["baseline"]["phases_ms"][0])]
    measured += [(update.name, update.phases_ms[0]) for update in updates]
    return [
        {"step": name, **{phase: f"{of.get(phase, 0.0):,.1f}" for phase in (*PHASES, "other")}}
        for name, of in measured
    ]


def _balances(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = []
    for row in found["balance"]:
        taken = row["milliseconds"]
        rows.append(
            {
                "ranks": row["ranks"],
                "busiest": f"{max(taken):,.2f}",
                "all": f"{sum(taken):,.2f}",
                "busiest / mean": f"{max(taken) / statistics.mean(taken):.2f}",
                "idle ranks": sum(not milliseconds for milliseconds in taken),
            }
        )
    return rows


def _targets(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [
        {
            "optimizer": row["optimizer"],
            "reached": f"{row['reached']} of {row['seeds']} seeds",
            "epochs": f"{row['epochs']:.2f}",
            "updates": f"{row['updates']:,.0f}",
            "minutes": f"{row['minutes']:.2f}",
            **{
                f"projected, {ranks} ranks": f"{value:.2f}"
                for ranks, value in row["projected_minutes"].items()
            },
        }
        for row in found["times_to_target"]
    ]


def _projection(found: Mapping[str, Any]) -> str:
    is_alone = found["ranks"] == 1
    communication = "left out, one rank has none" if is_alone else "as that of a ring"
    return (
        f"Epochs are means of the seeds that reached the target. Projected from the ledger of "
        f"{found['ranks']} rank(s), the batch as it is: work on samples divided, inverses those of "
        f"the busiest rank, communication {communication}, the rest unchanged."
    )


def _no_targets(asked: "Costs", found: Mapping[str, Any]) -> str:
    return (
        f"no runs on record for this definition: `cepheid measure epochs {found['benchmark']} "
        f"--scale {found['scale']} --compare {asked.comparison}` makes them"
    )


if __name__ == "__main__":
    run_tool(main)
