"""What `cepheid measure costs` adds for K-FAC: the inverses of each rank (Ueno et al. 2020)."""

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cepheid.measure.engine.figures import REPORTED, draw_figure
from cepheid.measure.engine.study import Column, Table
from cepheid.rules.errors import UserError

PROJECTED_RANKS = (1, 2, 4, 8, 16, 32, 64, 128)
REPETITIONS = 3  # of each layer's inverses, of which the fastest counts
RANKS_SHOWN = 128  # as figure 5 of the paper
INVERSE_COLOUR, IDEAL_COLOUR = "C4", REPORTED


def find_kfac(task: Any) -> Any:
    """Return the K-FAC of a task, or None."""
    return getattr(task.preconditioner, "kfac", None)


def refuse(hyperparameters: Mapping[str, Any]) -> None:
    """Raise UserError for values without K-FAC or without Cholesky inverses."""
    if hyperparameters["opt_preconditioner"] == "none":
        raise UserError(
            "--set opt_preconditioner=none: then there is no K-FAC whose costs could be "
            "measured; leave it out"
        )
    if hyperparameters["kfac_inverse"] == "eigen":
        raise UserError(
            "--set kfac_inverse=eigen: the times of inverses are measured for Cholesky "
            "inverses only; leave it out"
        )


def measure(task: Any) -> Mapping[str, Any]:
    """Time the inverses of each layer alone, on one rank: their size decides, not their values."""
    layers = [_time_inverses(layer) for layer in find_kfac(task).layers]
    balance = [
        {"ranks": ranks, "milliseconds": share_inverses(layers, ranks)} for ranks in PROJECTED_RANKS
    ]
    return {"inverses_ms": layers, "balance": balance}


def make_balance(facts: Mapping[str, Any]) -> Table:
    """Return how evenly ranks share the inverses."""
    columns = (
        Column("ranks", lambda row: row["ranks"]),
        Column("busiest", lambda row: max(row["milliseconds"]), "{:,.2f}"),
        Column("all", lambda row: sum(row["milliseconds"]), "{:,.2f}"),
        Column("busiest / mean", lambda row: max(row["milliseconds"])
               / statistics.mean(row["milliseconds"]), "{:.2f}"),
        Column("idle ranks", lambda row: row["milliseconds"].count(0.0)),
    )  # fmt: skip
    title = "Milliseconds of inverses, projected from the time of each layer (figure 5)"
    return Table(title, columns, facts["balance"])


def draw(folder: Path, facts: Mapping[str, Any]) -> Path:
    """Draw how long each rank computes inverses, and waits for the busiest (figure 5)."""
    path = folder / "balance.png"
    with draw_figure(path, columns=2) as (_, (left, right)):
        row = next(row for row in facts["balance"] if row["ranks"] == RANKS_SHOWN)
        computed, most = row["milliseconds"], max(row["milliseconds"])
        ranks, waits = range(RANKS_SHOWN), [most - each for each in row["milliseconds"]]
        left.bar(ranks, computed, width=1, color=INVERSE_COLOUR, label="inverses")
        left.bar(ranks, waits, width=1, bottom=computed, color=IDEAL_COLOUR, label="waiting")
        title = f"projected to {RANKS_SHOWN} ranks from each layer's measured time"
        left.set(xlabel="rank", ylabel="ms", title=title)
        left.legend()
        counts = [row["ranks"] for row in facts["balance"]]
        busiest = [max(row["milliseconds"]) for row in facts["balance"]]
        right.plot(counts, busiest, "o-", color=INVERSE_COLOUR, label="busiest rank")
        ideal = [busiest[0] / count for count in counts]
        right.plot(counts, ideal, "--", color=IDEAL_COLOUR, label="evenly shared")
        right.set_xscale("log", base=2)
        right.set(yscale="log", xlabel="ranks", title="busiest rank")
        right.legend()
    return path


def _time_inverses(layer: Any) -> dict[str, Any]:
    """Return the fastest time of the inverses of one layer, and its cost in the balance."""
    import torch

    from cepheid.reference.torch.devices.kinds import find_device
    from cepheid.second_order.statistic import factorize_cholesky

    sizes = [stat.size for stat in layer.statistics if stat.is_matrix]
    matrices = [torch.eye(size, device=layer.device) for size in sizes]
    dampings = [torch.ones((), device=layer.device)] * len(sizes)
    milliseconds = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        factorize_cholesky([layer.name] * len(sizes), matrices, dampings)
        find_device(layer.device).synchronize()
        milliseconds.append(1000 * (time.perf_counter() - start))
    return {
        "layer": layer.name,
        "sizes": sizes,
        "milliseconds": min(milliseconds),
        "cost": layer.cost,
    }


def share_inverses(layers_ms: Sequence[Mapping[str, Any]], ranks: int) -> list[float]:
    """Return the milliseconds of the inverses of each rank, as the optimizer assigns layers."""
    from cepheid.second_order.exchange import assign_owners

    owners = assign_owners([layer["cost"] for layer in layers_ms], ranks).of_layer
    sums = [0.0] * ranks
    for layer, owner in zip(layers_ms, owners, strict=True):
        sums[owner] += layer["milliseconds"]
    return sums
