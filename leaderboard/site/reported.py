"""Numbers from the literature and from published logs: data files, each with its source.

This project has run or checked none of them, except the scores that its own scorer computed from
the logs (``scored_here``). The files are in ``reported/``. The times behind the figures of the
cosmology paper are beside the benchmarks, in ``benchmarks/<name>/published.yaml``.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from cepheid.leaderboard.plots.charts import Family, plot_scaling
from cepheid.leaderboard.plots.plot import (
    Axis,
    Guide,
    Plot,
    Point,
    Series,
    make_plot,
    pick_colour,
)
from cepheid.rules import definition

FOLDER = Path(__file__).parent / "reported"
SCORES = FOLDER / "mlperf_scores.csv"
TPU = "tpu-v3-"  # before the number of cores in the names of Google's systems

_SIZES = {"training": "batch size", "generation": "images"}
_SECONDS = {
    "training": "seconds for 100 epochs of 8,000 stamps",
    "generation": "seconds to generate the images",
}


@dataclass(frozen=True)
class ReportedSet:
    """The numbers of one source. ``about`` names our benchmarks that they concern.

    ``tables`` are as the source prints them, with an empty cell where there is no number.
    """

    name: str
    title: str
    about: tuple[str, ...]
    source: str
    caveats: tuple[str, ...]
    tables: tuple[Mapping[str, Any], ...]
    plots: tuple[Plot, ...]


@cache
def load_sets() -> tuple[ReportedSet, ...]:
    """Load all sets: the cosmology paper, then the other sources, then scores of MLPerf."""
    papers = (
        (path.stem.replace("_", "-"), yaml.safe_load(path.read_text(encoding="utf-8")))
        for path in sorted(FOLDER.glob("*_20[0-9][0-9].yaml"))
    )
    return tuple(
        _make_set(name, document) for name, document in (*_read_figures(), *papers, *_read_scores())
    )


def _make_set(name: str, document: Mapping[str, Any]) -> ReportedSet:
    raw = {table["id"]: table for table in document["tables"]}
    tables = (
        {"note": "", **table, "rows": [list(map(_format_cell, row)) for row in table["rows"]]}
        for table in raw.values()
    )
    drawn = (_draw(name, settings, raw) for settings in document.get("plots", ()))
    return ReportedSet(
        name, document["title"], tuple(document["about"]), document["source"],
        tuple(document["caveats"]), tuple(tables), tuple(filter(None, drawn)),
    )  # fmt: skip


def _format_cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _draw(
    name: str, settings: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]
) -> Plot | None:
    """Draw a plot of columns of some tables.

    ``lines`` has a line for each column ``y`` or value of the column ``by``, ``scaling`` is time
    against devices, and ``throughput`` the same for rates, which as times have the same ideal line.
    """
    lines = _collect_lines(settings, tables)
    kind, x, (y, *_) = settings["kind"], settings["x"], settings["y"]
    if kind == "lines":
        series = [
            Series(label, tuple(points), pick_colour(number))
            for number, (label, points) in enumerate(lines.items())
        ]
        guides = [Guide(value, label) for value, label in settings.get("guides", ())]
        unit = settings.get("unit", y)
        named, across = f"{name}-{x}-{unit}".replace(" ", "-"), Axis(x)
        up = Axis(unit, from_zero=bool(guides))
        return make_plot(named, settings["title"], across, up, series, guides=guides)
    if kind == "throughput":
        y = "seconds for a million images"
        lines = {key: [(n, 1e6 / rate) for n, rate in line] for key, line in lines.items()}
    families = [
        Family(label, tuple((int(n), value) for n, value in points))
        for label, points in lines.items()
    ]
    return plot_scaling(families, name, x, y)


def _collect_lines(
    settings: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]
) -> dict[str, list[Point]]:
    lines: dict[str, list[Point]] = {}
    names = settings.get("labels", settings["tables"])
    for table, name in zip(settings["tables"], names, strict=True):
        for row in tables[table]["rows"]:
            cells = dict(zip(tables[table]["columns"], row, strict=True))
            for column in settings["y"]:
                label = column if len(settings["y"]) > 1 else cells.get(settings.get("by"), name)
                if cells[settings["x"]] is not None and cells[column] is not None:
                    point = float(cells[settings["x"]]), float(cells[column])
                    lines.setdefault(label, []).append(point)
    return {label: sorted(points) for label, points in lines.items()}


def _read_figures() -> Iterator[tuple[str, dict[str, Any]]]:
    """Read figures 2 to 4 of the cosmology paper: times, and the ratio of the two machines."""
    paths = definition.locate_benchmarks().glob("*/published.yaml")
    documents = {
        path.parent.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in paths
    }
    for name, said in sorted(documents.items(), key=lambda item: int(item[1]["figure"])):
        size, seconds = _SIZES[said["measure"]], _SECONDS[said["measure"]]
        machines = {m: facts["seconds"] for m, facts in said["machines"].items()}
        first, second = machines
        ratio = f"{second} / {first}"
        rows = []
        for number in sorted({n for times in machines.values() for n in times}):
            times = [machines[machine].get(number) for machine in (first, second)]
            known = None not in times
            rows.append([number, *times, round(times[1] / times[0], 2) if known else None])
        last = max(said["in_figure"])
        beyond = f"Beyond {last:,} the numbers are only in the author's notebook. "
        beyond = beyond if any(row[0] > last for row in rows) else ""
        table = {
            "id": f"{name}-times",
            "title": seconds.capitalize(),
            "columns": [size, first, second, ratio],
            "rows": rows,
            "note": f"{beyond}Above 1 in the last column the {first} wins.",
        }
        plot = {"kind": "lines", "tables": [table["id"]], "x": size}
        times_plot = {"title": f"Time against {size}", "y": [first, second], "unit": "seconds"}
        ratio_plot = {
            "title": f"Speed ratio against {size}", "y": [ratio], "labels": [ratio],
            "guides": [(1.0, "1: as fast as each other")], "unit": "speed ratio",
        }  # fmt: skip
        document = {
            **said,
            "title": f"IPU against V100: {said['network']} (figure {said['figure']})",
            "about": [name],
            "tables": [table],
            "plots": [plot | times_plot, plot | ratio_plot],
        }
        yield f"cosmology-{said['figure']}", document


def load_scores() -> list[dict[str, str]]:
    """Load the scores of published rounds, which were computed from their logs."""
    with SCORES.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _read_scores() -> Iterator[tuple[str, dict[str, Any]]]:
    """Read the scores of each round; those of TPUs are figures 7 to 9 of the TPU paper, too."""
    common = yaml.safe_load(SCORES.with_suffix(".yaml").read_text(encoding="utf-8"))
    scores = load_scores()
    for name in dict.fromkeys(one["round"] for one in scores):
        members = [one for one in scores if one["round"] == name]
        title = name.replace("mlperf-training-", "MLPerf Training v")
        title = title.replace("mlperf-hpc-", "MLPerf HPC v")
        table = {**common["scores"], "id": name, "rows": list(map(_list_cells, members))}
        tpus = [one for one in members if one["system"].startswith(TPU)]
        drawn = {**common["tpus"], "rows": _measure_tpus(tpus)}
        has_tpus = name == drawn["of"]
        document = {
            "title": f"{title}: scores computed from the published logs",
            "about": common["about"],
            "source": f"run logs of {title}, {common['source']}",
            "caveats": common["caveats"],
            "tables": [table, drawn] if has_tpus else [table],
            "plots": drawn["plots"] if has_tpus else (),
        }
        yield name, document


def _list_cells(one: Mapping[str, str]) -> list[object]:
    batch = one["global_batch_size"]
    return [
        one["benchmark"], one["submitter"], one["system"], int(batch) if batch else None,
        int(one["runs"]), one["olympic_mean_minutes"],
        one["epochs_to_target_each_converged_run"], "yes" * (one["scored_here"] == "yes"),
    ]  # fmt: skip


def _measure_tpus(scores: Sequence[Mapping[str, str]]) -> list[list[object]]:
    """List benchmark, cores, batch size, mean epochs and seconds, by the number of cores."""
    rows: list[list[object]] = []
    for one in scores:
        epochs = list(map(float, one["epochs_to_target_each_converged_run"].split()))
        batch = one["global_batch_size"]
        rows.append([
            one["benchmark"], int(one["system"].removeprefix(TPU)), int(batch) if batch else None,
            round(sum(epochs) / len(epochs), 2) if epochs else None,
            round(60 * float(one["olympic_mean_minutes"]), 1),
        ])  # fmt: skip
    return sorted(rows, key=lambda row: (str(row[0]), int(str(row[1]))))
