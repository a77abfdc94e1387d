"""Which rank owns which layer, and what travels: sums to the owners, results back to all.

Algorithm 1 of Ueno et al. 2020; owners as in section 3.3.1 and figure 5. Numbers travel in one of
the ``number_formats``; in one level over all ranks, or in two, within each node and then between
nodes (section 4.1), so that only the share of one rank of a node leaves it. Every byte is counted.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cepheid.second_order import number_formats
from cepheid.second_order.number_formats import Format
from cepheid.second_order.options import UseError

Guard = Callable[[], AbstractContextManager[None]]
Sums = Callable[[], list[Tensor]]


@dataclass(frozen=True)
class Level:
    """A group of ranks, and this rank's place in it."""

    name: str
    group: Any
    members: tuple[int, ...]  # global ranks, ascending
    place: int


class Exchange:
    """The collectives of K-FAC over all ranks of torch.distributed.

    They use process groups of their own, so that they never mix with other collectives. Every rank
    makes the same calls in the same order. ``guard`` is entered around every collective and turns
    the loss of a rank into the caller's own error.

    ``sent`` counts the bytes that this rank sends, by purpose and level: in a reduction the parts
    that others own, in an all-gather its own part once for each other rank. Summed over all ranks,
    this is what must arrive, whatever algorithm the library uses.

    Raises UseError if the number of ranks is not a multiple of ``ranks_per_node``.
    """

    def __init__(self, ranks_per_node: int = 0, guard: Guard = nullcontext) -> None:
        self.sent: Counter[tuple[str, str]] = Counter()
        self._guard = guard
        self._groups: list[Any] = []
        started = dist.is_available() and dist.is_initialized()
        self.world_size = dist.get_world_size() if started else 1
        self.rank = dist.get_rank() if started else 0
        everyone = range(self.world_size)
        if self.world_size == 1:
            self._levels: tuple[Level, ...] = ()
            return
        if self.world_size % (ranks_per_node or 1):
            raise UseError(
                f"ranks_per_node {ranks_per_node}: {self.world_size} ranks do not fill whole "
                "nodes; choose a divisor, or 0 for communication in one level"
            )
        self._all = self._make_level("all", [everyone])
        if 1 < ranks_per_node < self.world_size:
            starts = range(0, self.world_size, ranks_per_node)
            nodes = [range(start, start + ranks_per_node) for start in starts]
            rails = [
                range(local, self.world_size, ranks_per_node) for local in range(ranks_per_node)
            ]
            self._levels = (
                self._make_level("node", nodes),
                self._make_level("between nodes", rails),
            )
        else:
            self._levels = (self._all,)

    @property
    def is_rounding(self) -> bool:
        """True if numbers are rounded to a format because they are sent."""
        return self.world_size > 1

    def close(self) -> None:
        """Destroy the process groups; nothing can be sent afterwards."""
        for group in self._groups:
            dist.destroy_process_group(group)
        self._groups.clear()

    def _make_level(self, name: str, groups: Sequence[Iterable[int]]) -> Level:
        """Make all groups in the same order on every rank, as torch.distributed requires."""
        mine: Level | None = None
        for members in map(tuple, groups):
            with self._guard():
                group = dist.new_group(list(members))
            if self.rank in members:
                self._groups.append(group)
                mine = Level(name, group, members, members.index(self.rank))
        assert mine is not None
        return mine

    def start_sums(
        self, parts: Sequence[Tensor], owners: Sequence[int], purpose: str, form: Format = "float32"
    ) -> Sums:
        """Begin to sum each part over all ranks, for its owner only (a reduce-scatter).

        Each part is float32 (size,); their number and sizes are equal on every rank. What is
        returned waits and gives the sums of this rank's own parts, in order. Each rank's part is
        rounded to ``form`` once, and once more between nodes in two levels; sums are in float32.
        """
        mine = [part for part, owner in zip(parts, owners, strict=True) if owner == self.rank]
        if self.world_size == 1 or not parts:
            return lambda: mine
        sizes = [part.numel() for part in mine]
        first, *further = self._levels
        buffers = [
            _join([part for part, owner in zip(parts, owners, strict=True) if owner == rank], parts)
            for rank in range(self.world_size)
        ]
        members = len(first.members)  # all, or those of this node, each on the rail of some owners
        shares = [buffers[place::members] for place in range(members)]
        started = self._start_reduction(
            [torch.cat(share) for share in shares], first, purpose, form
        )
        share_sizes = [buffer.numel() for buffer in shares[first.place]]

        def finish() -> list[Tensor]:
            summed = started()
            for level in further:
                by_node = list(summed.split(share_sizes))
                summed = self._start_reduction(by_node, level, purpose, form)()
            return list(summed.split(sizes)) if sizes else []

        return finish

    def _start_reduction(
        self, buffers: list[Tensor], level: Level, purpose: str, form: Format
    ) -> Callable[[], Tensor]:
        """Sum buffer k of all members of a level on its k-th member."""
        size = buffers[level.place].numel()
        if form != "float32":
            return self._start_packed_reduction(buffers, size, level, purpose, form)
        self._count(buffers, level, purpose)
        total = torch.empty_like(buffers[level.place])
        with self._guard():
            work = dist.reduce_scatter(total, buffers, group=level.group, async_op=True)

        def finish() -> Tensor:
            with self._guard():
                work.wait()
            return total

        return finish

    def _start_packed_reduction(
        self, buffers: list[Tensor], size: int, level: Level, purpose: str, form: Format
    ) -> Callable[[], Tensor]:
        """Send all contributions to each owner, who adds them in float32.

        The sums of a library would be in the format itself.
        """
        words = [number_formats.pack(buffer, form) for buffer in buffers]
        self._count(words, level, purpose)
        own = words[level.place].numel()
        members = len(level.members)
        received = words[0].new_empty(own * members)
        splits = [word.numel() for word in words]
        with self._guard():
            work = dist.all_to_all_single(
                received,
                torch.cat(words),
                [own] * members,
                splits,
                group=level.group,
                async_op=True,
            )

        def finish() -> Tensor:
            with self._guard():
                work.wait()
            total = torch.zeros(size, device=received.device)
            for contribution in received.split(own) if own else []:
                total += number_formats.unpack(contribution, size, form)
            return number_formats.flush_subnormals(total)

        return finish

    def gather(
        self, parts: Sequence[Tensor], owners: Sequence[int], purpose: str, form: Format = "float32"
    ) -> list[Tensor]:
        """Return each part as its owner has it, on every rank (an all-gather of uneven shares).

        Each part is float32 (size,); their number and sizes are equal on every rank; on ranks that
        do not own one, its values do not matter. All ranks, the owner too, get what ``form``
        leaves of the values.
        """
        if self.world_size == 1 or not parts:
            return list(parts)
        indices = [
            [index for index, owner in enumerate(owners) if owner == rank]
            for rank in range(self.world_size)
        ]
        sizes = [sum(parts[index].numel() for index in of_rank) for of_rank in indices]
        own = number_formats.pack(
            _join([parts[index] for index in indices[self.rank]], parts), form
        )
        lengths = [number_formats.count_words(size, form) for size in sizes]
        by_rank = {self.rank: own}
        for level in reversed(self._levels):
            by_rank = self._gather_in_level(by_rank, level, lengths, purpose)
        results = list(parts)
        for rank, of_rank in enumerate(indices):
            if not of_rank:
                continue
            flat = number_formats.unpack(by_rank[rank], sizes[rank], form)
            shares = flat.split([parts[index].numel() for index in of_rank])
            for index, share in zip(of_rank, shares, strict=True):
                results[index] = share.view(parts[index].shape)
        return results

    def _gather_in_level(
        self, held: dict[int, Tensor], level: Level, lengths: Sequence[int], purpose: str
    ) -> dict[int, Tensor]:
        """Gather what each member of a level holds, by the rank that it comes from."""
        # Within a node each rank holds what came along its rail, else only its own.
        sources = {
            member: self._find_rail(member) if level.name == "node" else (member,)
            for member in level.members
        }
        sizes = [[lengths[source] for source in sources[member]] for member in level.members]
        own = torch.cat([held[source] for source in sources[self.rank]])
        received = self._send_to_all(own, list(map(sum, sizes)), level, purpose)
        results: dict[int, Tensor] = {}
        for member, flat, of_sources in zip(level.members, received, sizes, strict=True):
            results |= zip(sources[member], flat.split(of_sources), strict=True)
        return results

    def _send_to_all(
        self, own: Tensor, sizes: Sequence[int], level: Level, purpose: str
    ) -> list[Tensor]:
        """Return what each member of a level has, (sizes[k],): one collective, nothing padded.

        It is an all-to-all, which has uneven sizes in every library; an all-gather has even ones.
        """
        others = [size if place != level.place else 0 for place, size in enumerate(sizes)]
        to_each = [own.numel() if place != level.place else 0 for place in range(len(sizes))]
        self.sent[purpose, level.name] += sum(to_each) * own.element_size()
        received = own.new_empty(sum(others))
        if sum(sizes):
            with self._guard():
                dist.all_to_all_single(
                    received, own.repeat(len(sizes) - 1), others, to_each, group=level.group
                )
        results = list(received.split(others))
        results[level.place] = own
        return results

    def _find_rail(self, rank: int) -> tuple[int, ...]:
        """Return the ranks with the same place in their nodes."""
        per_node = len(self._levels[0].members)
        return tuple(range(rank % per_node, self.world_size, per_node))

    def sum(self, values: Tensor, purpose: str) -> Tensor:
        """Sum ``values`` of any shape over all ranks, on every rank (an all-reduce)."""
        if self.world_size == 1:
            return values
        # A reduce-scatter and an all-gather of equal shares.
        share = 2 * (self.world_size - 1) / self.world_size
        self.sent[purpose, "all"] += round(values.numel() * values.element_size() * share)
        total = values.clone()
        with self._guard():
            dist.all_reduce(total, group=self._all.group)
        return total

    def _count(self, buffers: Sequence[Tensor], level: Level, purpose: str) -> None:
        for place, buffer in enumerate(buffers):
            if place != level.place:
                self.sent[purpose, level.name] += buffer.numel() * buffer.element_size()


def _join(parts: Sequence[Tensor], like: Sequence[Tensor]) -> Tensor:
    """Join all parts to one flat tensor on the device of ``like``; without parts it is empty."""
    if parts:
        return torch.cat([part.reshape(-1) for part in parts])
    return like[0].new_empty(0)


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
