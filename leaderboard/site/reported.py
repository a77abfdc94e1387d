"""Numbers from the literature and from published logs: data files, each with its source.

This project has run or checked none of them, except the scores that its own scorer computed from
the logs (``scored_here``). The files are in ``reported/``. The times behind the figures of the
cosmology paper are beside the benchmarks, in ``benchmarks/<name>/published.yaml``.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from cepheid.leaderboard.plots.plot import (
    Axis,
    Guide,
    Plot,
    Series,
    Table,
    make_plot,
    make_table,
    pick_colour,
)
from cepheid.leaderboard.plots.scaling import Family, plot_scaling
from cepheid.rules import definition

FOLDER = Path(__file__).parent / "reported"
SCORES = FOLDER / "mlperf_scores.csv"

_SIZES = {"training": "batch size", "generation": "images"}
_SECONDS = {
    "training": "seconds for 100 epochs of 8,000 stamps",
    "generation": "seconds to generate the images",
}


@dataclass(frozen=True)
class ReportedTable:
    """A table as its source prints it; an empty cell where there is no number."""

    id: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class ReportedSet:
    """The numbers of one source. ``about`` names our benchmarks that they concern."""

    name: str
    title: str
    about: tuple[str, ...]
    source: str
    caveats: tuple[str, ...]
    tables: tuple[ReportedTable, ...] = ()
    plots: tuple[Plot, ...] = field(default=())


@cache
def load_sets() -> tuple[ReportedSet, ...]:
    """Load all sets: the cosmology paper, then the other sources, then scores of MLPerf."""
    papers = [_read_paper(path) for path in sorted(FOLDER.glob("*.yaml"))]
    return (*_read_figures(), *papers, *_list_mlperf())


def _read_figures() -> Iterator[ReportedSet]:
    """Read figures 2 to 4 of the cosmology paper: times, and the ratio of the two machines."""
    documents = [
        (path, yaml.safe_load(path.read_text(encoding="utf-8")))
        for path in definition.locate_benchmarks().glob("*/published.yaml")
    ]
    for path, document in sorted(documents, key=lambda item: int(item[1]["figure"])):
        name, figure, measure = path.parent.name, document["figure"], document["measure"]
        size, seconds = _SIZES[measure], _SECONDS[measure]
        machines = {m: facts["seconds"] for m, facts in document["machines"].items()}
        rows = [
            [f"{n:,}", *(_format_cell(times.get(n)) for times in machines.values())]
            for n in sorted({n for times in machines.values() for n in times})
        ]
        beyond = (
            f"Beyond {max(document['in_figure'])} the numbers are only in the author's notebook."
        )
        tables = [
            ReportedTable(
                f"{name}-times", seconds.capitalize(), (size, *machines), _make_texts(rows), beyond
            )
        ]
        yield ReportedSet(
            name=f"cosmology-{figure}",
            title=f"IPU against V100: {document['network']} (figure {figure})",
            about=(name,),
            source=document["source"],
            caveats=tuple(document["caveats"]),
            tables=tuple(tables),
            plots=tuple(_draw_figure(name, machines, size, tables[0])),
        )


def _draw_figure(
    name: str, machines: Mapping[str, Mapping[int, float]], size: str, times: ReportedTable
) -> Iterator[Plot]:
    series = [
        Series(machine, tuple((float(n), s) for n, s in sorted(values.items())), number)
        for number, (machine, values) in enumerate(machines.items())
    ]
    first, second = machines
    both = sorted(set(machines[first]) & set(machines[second]))
    ratios = tuple((float(n), machines[second][n] / machines[first][n]) for n in both)
    drawn = (
        make_plot(
            f"{name}-seconds",
            f"Time against {size}",
            Axis(size),
            Axis("seconds"),
            series,
            table=Table(times.header, times.rows),
            description=f"{times.title}.",
        ),
        make_plot(
            f"{name}-ratio",
            f"Speed ratio against {size}",
            Axis(size),
            Axis("speed ratio", from_zero=True),
            [Series(f"{second} / {first}", ratios, 2)],
            guides=[Guide(1.0, "1: as fast as each other")],
            table=make_table((size, "ratio"), ((f"{int(n):,}", f"{r:.2f}") for n, r in ratios)),
            description=f"Time of the {second} over that of the {first}: above 1 the {first} wins.",
        ),
    )
    yield from (plot for plot in drawn if plot)


def _read_paper(path: Path) -> ReportedSet:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    raw = {entry["id"]: entry for entry in document["tables"]}
    tables = [
        ReportedTable(
            name,
            entry["title"],
            tuple(entry["columns"]),
            _make_texts([_format_cell(value) for value in row] for row in entry["rows"]),
            entry.get("note", ""),
        )
        for name, entry in raw.items()
    ]
    drawn = [_draw_paper(path.stem, settings, raw) for settings in document.get("plots", ())]
    return ReportedSet(
        name=path.stem.replace("_", "-"),
        title=document["title"],
        about=tuple(document["about"]),
        source=document["source"],
        caveats=tuple(document["caveats"]),
        tables=tuple(tables),
        plots=tuple(plot for plot in drawn if plot),
    )


def _draw_paper(
    name: str, settings: Mapping[str, Any], raw: Mapping[str, Mapping[str, Any]]
) -> Plot | None:
    """Draw a plot of a paper.

    ``scaling`` is time against devices, with a line for each value of a column. ``throughput`` is
    the same for rates, with a line for each table; as times they have the same ideal line.
    """
    if settings["kind"] == "throughput":
        families = [
            Family(
                label,
                tuple(
                    (n, 1e6 / rate)
                    for n, rate in _pair_columns(raw[table], settings["x"], settings["y"])
                ),
            )
            for table, label in zip(settings["tables"], settings["labels"], strict=True)
        ]
        return plot_scaling(families, name, settings["x"], "seconds for a million images")
    entry = raw[settings["table"]]
    by = entry["columns"].index(settings["by"])
    families = [
        Family(
            label,
            tuple(
                _pair_columns(
                    {**entry, "rows": [row for row in entry["rows"] if row[by] == label]},
                    settings["x"],
                    settings["y"],
                )
            ),
        )
        for label in dict.fromkeys(row[by] for row in entry["rows"])
    ]
    return plot_scaling(families, name, settings["x"], settings["y"])


def _pair_columns(entry: Mapping[str, Any], x: str, y: str) -> list[tuple[int, float]]:
    """Return the pairs of two columns; of several rows with the same number, the fastest."""
    at, of = entry["columns"].index(x), entry["columns"].index(y)
    return sorted(((row[at], row[of]) for row in entry["rows"]), key=lambda p: (p[0], -p[1]))


@dataclass(frozen=True)
class PublishedScore:
    """A score of MLPerf. ``cores`` is known for TPUs, whose systems are named after it."""

    round: str
    benchmark: str
    submitter: str
    system: str
    batch_size: int | None
    runs: int
    minutes: float
    epochs: tuple[float, ...]
    scored_here: bool

    @property
    def cores(self) -> int | None:
        """The number in ``tpu-v3-1024``."""
        kind, _, number = self.system.rpartition("-")
        return int(number) if kind == "tpu-v3" and number.isdigit() else None


def load_scores() -> list[PublishedScore]:
    """Load the scores of published rounds, which were computed from their logs."""
    with SCORES.open(encoding="utf-8", newline="") as file:
        return [
            PublishedScore(
                row["round"],
                row["benchmark"],
                row["submitter"],
                row["system"],
                int(row["global_batch_size"]) if row["global_batch_size"] else None,
                int(row["runs"]),
                float(row["olympic_mean_minutes"]),
                tuple(map(float, row["epochs_to_target_each_converged_run"].split())),
                row["scored_here"] == "yes",
            )
            for row in csv.DictReader(file)
        ]


def _list_mlperf() -> Iterator[ReportedSet]:
    by_round: dict[str, list[PublishedScore]] = {}
    for one in load_scores():
        by_round.setdefault(one.round, []).append(one)
    for name, members in by_round.items():
        header = ("benchmark", "submitter", "system", "batch size", "runs", "minutes", "epochs",
                  "scored here")  # fmt: skip
        rows = [
            (
                one.benchmark,
                one.submitter,
                one.system,
                "" if one.batch_size is None else f"{one.batch_size:,}",
                one.runs,
                f"{one.minutes:.3f}",
                " ".join(f"{epochs:g}" for epochs in one.epochs),
                "yes" if one.scored_here else "",
            )
            for one in members
        ]
        tables = (
            ReportedTable(name, "Olympic mean of the times to train", header, _make_texts(rows)),
        )
        yield ReportedSet(
            name=name,
            title=f"{_make_title(name)}: scores computed from the published logs",
            about=("resnet50", "transformer", "ssd", "mask_rcnn", "gnmt"),
            source=(
                f"run logs of {_make_title(name)}, mlcommons' results repositories (Apache-2.0); "
                "the logs are not part of this project"
            ),
            caveats=(
                "A run that did not end in success counts as the slowest. We have not judged "
                "these results: MLPerf's own review has.",
                "“Scored here”: this project's scorer computed this number from the logs. "
                "The others were computed from the published logs in the same way.",
                "Epochs are the submitters' own, at the last evaluation before run_stop. Logs of "
                "v0.6 that call their first epoch 0 (Google's Mask R-CNN) count one more here.",
            ),
            tables=tables,
            plots=tuple(_draw_tpus(members)) if name == "mlperf-training-0.6" else (),
        )


def _make_title(name: str) -> str:
    return name.replace("mlperf-training-", "MLPerf Training v").replace(
        "mlperf-hpc-", "MLPerf HPC v"
    )


def _draw_tpus(members: Sequence[PublishedScore]) -> Iterator[Plot]:
    """Draw figures 7 to 9 of the TPU paper: batch size, epochs, seconds of Google's results."""
    mine: dict[str, list[PublishedScore]] = {}
    for one in sorted((one for one in members if one.cores), key=lambda one: one.cores or 0):
        mine.setdefault(one.benchmark, []).append(one)
    batches, epochs = [], []
    for number, (benchmark, scores) in enumerate(mine.items()):
        sized = [one for one in scores if one.batch_size]
        batch = tuple((float(one.cores or 0), float(one.batch_size or 0)) for one in sized)
        batches.append(Series(benchmark, batch, pick_colour(number)))
        mean = {one.batch_size: sum(one.epochs) / len(one.epochs) for one in sized if one.epochs}
        by_batch = tuple(sorted((float(size or 0), value) for size, value in mean.items()))
        epochs.append(Series(benchmark, by_batch, pick_colour(number)))
    families = [
        Family(benchmark, tuple((one.cores or 0, 60 * one.minutes) for one in scores))
        for benchmark, scores in mine.items()
    ]
    drawn = (
        make_plot(
            "tpu-batches",
            "Batch size against TPU cores (figure 7 of the TPU paper)",
            Axis("TPU v3 cores", is_log=True),
            Axis("global batch size", is_log=True),
            batches,
            table=_tabulate(batches, ("benchmark", "cores", "batch size")),
        ),
        make_plot(
            "tpu-epochs",
            "Epochs to the target against batch size (figure 8)",
            Axis("global batch size", is_log=True),
            Axis("epochs to the target, mean", is_log=True),
            epochs,
            table=_tabulate(epochs, ("benchmark", "batch size", "epochs")),
        ),
        plot_scaling(families, "tpu-seconds", "TPU v3 cores", "seconds"),
    )
    yield from (plot for plot in drawn if plot)


def _tabulate(series: Sequence[Series], header: tuple[str, ...]) -> Table:
    return make_table(
        header, ((one.label, f"{x:,.0f}", f"{y:,.4g}") for one in series for x, y in one.points)
    )


def _format_cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def _make_texts(rows: Any) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(str(cell) for cell in row) for row in rows)
