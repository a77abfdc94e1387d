"""Which rank inverts which layer (Ueno et al. 2020, section 3.3.1 and figure 5)."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Owners:
    """The owner of each layer, by the layer's index, and what each rank has to do."""

    of_layer: tuple[int, ...]
    cost_by_rank: tuple[float, ...]

    @property
    def imbalance(self) -> float:
        """The work of the busiest rank divided by the mean of all ranks: 1 if it is even."""
        mean = sum(self.cost_by_rank) / len(self.cost_by_rank)
        return max(self.cost_by_rank) / mean if mean else 1.0

    @property
    def idle_ranks(self) -> list[int]:
        """The ranks without a layer, where there are more ranks than layers."""
        return [rank for rank in range(len(self.cost_by_rank)) if rank not in self.of_layer]

    def format_table(self) -> str:
        """Return a table for people, one line per rank: its layers and share of the work."""
        total = sum(self.cost_by_rank) or 1.0
        lines = [f"rank  layers  share of the inverses   (busiest / mean: {self.imbalance:.2f})"]
        for rank, cost in enumerate(self.cost_by_rank):
            share = cost / total
            bar = "#" * round(40 * share)
            lines.append(f"{rank:4d}  {self.of_layer.count(rank):6d}  {share:6.1%}  {bar}")
        if self.idle_ranks:
            idle = ", ".join(map(str, self.idle_ranks))
            lines.append(f"ranks without a layer, which wait for the others: {idle}")
        return "\n".join(lines)


def estimate_inversion_cost(factor_sizes: Sequence[int]) -> float:
    """Return the cost of a layer's inverses up to a constant: cubic in each factor's size."""
    return float(sum(size**3 for size in factor_sizes))


def assign_owners(costs: Sequence[float], ranks: int) -> Owners:
    """Assign an owner to each layer: the costliest first, to the rank with the least work so far.

    The result is at most 4/3 of the best balance (Graham 1969) and the same on every rank.
    """
    loads = [0.0] * ranks
    owners = [0] * len(costs)
    for layer in sorted(range(len(costs)), key=lambda layer: (-costs[layer], layer)):
        rank = loads.index(min(loads))
        owners[layer] = rank
        loads[rank] += costs[layer]
    return Owners(tuple(owners), tuple(loads))
