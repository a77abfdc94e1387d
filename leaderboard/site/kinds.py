"""What the pages of a benchmark show that depends on its kind: plots, tables, words."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from cepheid.compliance.score.kinds import GENERATION, TRAINING, BenchmarkKind
from cepheid.leaderboard.plots import curves, scaling
from cepheid.leaderboard.plots.plot import Plot, Table
from cepheid.leaderboard.rows.entry import Entry
from cepheid.rules.definition import Definition
from cepheid.rules.generation import METRICS, Metric


class PageKind(ABC):
    """What the pages of a kind of benchmark show.

    ``metrics`` are the columns of scores in place of minutes and samples. ``title`` heads the plots
    of a result, ``block`` and ``block_name`` say how its time line calls a stretch of work.
    """

    metrics: ClassVar[tuple[Metric, ...]] = ()
    title: ClassVar[str]
    block: ClassVar[str]
    block_name: ClassVar[str]

    @abstractmethod
    def draw_results(
        self,
        entries: Sequence[Entry],
        colours: Mapping[str, int],
        definition: Definition | None,
        name: str,
    ) -> list[Plot]:
        """Draw the results of a division, or one result alone."""

    def draw_field(
        self, entries: Sequence[Entry], colours: Mapping[str, int], name: str
    ) -> list[Plot]:
        """Draw what compares the systems of a division."""
        return []

    def list_other_targets(
        self, entries: Sequence[Entry], definition: Definition | None
    ) -> list[Table]:
        """Make a table of the minutes to other targets for each metric."""
        return []


class _TrainingPages(PageKind):
    """Pages of a benchmark that trains."""

    title, block, block_name = "Quality", "block", "block of training"

    def draw_results(
        self,
        entries: Sequence[Entry],
        colours: Mapping[str, int],
        definition: Definition | None,
        name: str,
    ) -> list[Plot]:
        targets = definition.quality if definition else ()
        return curves.plot_quality(entries, colours, targets, name)

    def draw_field(
        self, entries: Sequence[Entry], colours: Mapping[str, int], name: str
    ) -> list[Plot]:
        what = "accelerators" if any(e.row.hardware.accelerators for e in entries) else "nodes"
        drawn = (
            scaling.plot_scaling(scaling.group_families(entries), name, what, "minutes"),
            scaling.plot_convergence(entries, colours, name),
        )
        return [plot for plot in drawn if plot]

    def list_other_targets(
        self, entries: Sequence[Entry], definition: Definition | None
    ) -> list[Table]:
        targets = definition.quality if definition else ()
        tables = (curves.tabulate_other_targets(entries, target) for target in targets)
        return [table for table in tables if table]


class _GenerationPages(PageKind):
    """Pages of a benchmark that generates."""

    metrics = METRICS
    title, block, block_name = "Generation", "generation", "generation"

    def draw_results(
        self,
        entries: Sequence[Entry],
        colours: Mapping[str, int],
        definition: Definition | None,
        name: str,
    ) -> list[Plot]:
        return curves.plot_generation(entries, colours, name)


PAGES: Mapping[BenchmarkKind, PageKind] = {
    TRAINING: _TrainingPages(),
    GENERATION: _GenerationPages(),
}
