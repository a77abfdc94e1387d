"""The pages of `make docs` that are no file, the tables of benchmarks, and our results as a page.

    python docs/pages.py        writes the tables between the marks of pages, from logs and records

MkDocs calls the functions named ``on_…`` (docs/mkdocs.yml). Pages keep the places of their files in
the repository, so that a link works in both; what a page links to and is no page, such as a
definition or a picture, is copied beside it. The reference is made from the parsers of the
commands, the definitions of the benchmarks, and the rules with the findings that each can tell.
The page of a benchmark ends with tables of what the JSON files beside its README record.
"""

import contextlib
import io
import math
import os
import posixpath
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from cepheid.compliance.report.rulebook import RuleText, read_rules
from cepheid.compliance.score import margins
from cepheid.measure.engine.recorded_points import read_points
from cepheid.measure.engine.study import Column, Request
from cepheid.measure.studies import convergence_points, epochs, epochs_study
from cepheid.measure.studies.resolution import resolution
from cepheid.measure.studies.sweep import quality
from cepheid.measure.studies.sweep.measures import MEASURES, Point, format_ends
from cepheid.measure.studies.sweep.quality import QualityPoint
from cepheid.measure.studies.sweep.records import Sweep, load_published
from cepheid.rules import definition, evidence, rcp
from cepheid.rules.definition import Definition
from cepheid.rules.evidence import Curve
from cepheid.rules.host import ROOT, atomic_write
from cepheid.rules.metrics import QualityTarget
from cepheid.rules.systems import load_devices
from cepheid.tools.cli import COMMANDS, main

RESULTS, SWEEPS = ROOT / "docs/results.md", ROOT / "docs/sweeps"
# Between marks such as `<!-- epochs kfac mini third: begin -->` and `<!-- epochs: end -->`.
BETWEEN = re.compile(r"(<!-- (\w+)([^:>]*): begin -->\n).*?(?=<!-- \2: end -->)", re.DOTALL)
LINK = re.compile(r"\[(?P<words>[^\[\]]*)\]\((?!\w+:|#)(?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
COLUMNS = "100"  # of the texts that commands print


# What MkDocs calls --------------------------------------------------------------------------------


def on_config(config: Any) -> Any:
    """Fill the parts of the navigation that are made from the benchmarks and the reference."""
    for part in config.nav:
        if "Benchmarks" in part:
            part["Benchmarks"] = [
                {name: f"benchmarks/{name}/README.md"} for name in definition.names()
            ]
        if "Reference" in part:
            part["Reference"] = [
                {group: [{title: place} for title, place, _ in pages]}
                for group, pages in list_reference()
            ]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the Markdown files of the repository, what they link to, and the reference."""
    from mkdocs.structure.files import File

    pages = list_pages(config.nav)
    for _, made in list_reference():
        for _, place, text in made:
            files.append(File.generated(config, place, content=text))
            pages.discard(place)
    linked: set[str] = set()
    for place in sorted(pages):
        files.append(File.generated(config, place, abs_src_path=str(ROOT / place)))
        linked |= set(list_linked((ROOT / place).read_text(encoding="utf-8"), place))
    for place in sorted(linked - pages):
        if (ROOT / place).is_file():
            files.append(File.generated(config, place, abs_src_path=str(ROOT / place)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Add what is recorded of a benchmark, and lead links to folders to their READMEs.

    Where a folder has none, the words of the link are left.
    """
    folder = Path(page.file.src_uri).parent
    if folder.match("benchmarks/*"):
        markdown += describe_records(folder.name)
    known = {file.src_uri for file in files}

    def lead(link: re.Match[str]) -> str:
        place = resolve(link["target"], page.file.src_uri)
        if place in known or not (ROOT / place).is_dir():
            return link[0]
        if f"{place}/README.md" in known:
            return f"[{link['words']}]({link['target'].rstrip('/')}/README.md)"
        return link["words"]

    return LINK.sub(lead, markdown)


# Which pages there are ----------------------------------------------------------------------------


def list_pages(nav: Any) -> set[str]:
    """Return the places of all pages of a navigation."""
    if isinstance(nav, str):
        return {nav}
    parts = nav.values() if isinstance(nav, dict) else nav
    return set().union(*map(list_pages, parts))


def list_linked(text: str, page: str) -> Iterator[str]:
    """Yield the places of the repository that a page links to."""
    for link in LINK.finditer(text):
        yield resolve(link["target"], page)


def resolve(target: str, page: str) -> str:
    """Return the place in the repository of a link's target on a page."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target))


Pages = Sequence[tuple[str, str, str]]
"""Title, place and text of each page."""


def list_reference() -> Sequence[tuple[str, Pages]]:
    """Return the groups of pages of the reference."""
    commands = [
        (name, f"reference/commands/{name}.md", describe_command(name)) for name in COMMANDS
    ]
    rules = [
        (f"{rule.id} {rule.title}", f"reference/rules/{rule.id}.md", describe_rule(rule))
        for rule in RULES
    ]
    settings = [
        (name, f"reference/settings/{name}.md", describe_settings(name))
        for name in definition.names()
    ]
    return (("Commands", commands), ("Settings", settings), ("Rules", rules))


RULES = tuple(read_rules().values())


def describe_command(name: str) -> str:
    """Return the page of a command: what its `--help` prints."""
    return f"# cepheid {name}\n\n```\n{run(name, '--help')}```\n"


def describe_settings(name: str) -> str:
    """Return the page of a benchmark's settings at each scale."""
    scales = "".join(
        f"\n## {scale} scale\n\n```\n{run('run', name, '--scale', scale, '--list')}```\n"
        for scale in definition.scales(name)
    )
    return f"# Settings of {name}\n\n[The benchmark](../../benchmarks/{name}/README.md).\n{scales}"


def describe_rule(rule: RuleText) -> str:
    """Return the page of a rule: its text, then each finding that `cepheid check` can tell."""
    book = f"From [{rule.book}](../../rules/{rule.book})."
    parts = [f"# {rule.id} {rule.title}", lead_from(rule.book, rule.body), book]
    if rule.codes:
        parts.append("## What the checker says")
    for name, code in rule.codes.items():
        message, expected, got, fix = code.fill(code.example)
        facts = {"level": code.severity, "for example": message, "expected": expected, "got": got}
        lines = [f"- {word}: {value}" for word, value in {**facts, "fix": fix}.items() if value]
        why = [f"Why: {code.why}"] if code.why else []
        parts += [f"### {name}", code.means, "\n".join(lines), *why]
    return "\n\n".join(parts) + "\n"


def lead_from(book: str, text: str) -> str:
    """Return a text of a book of rules with its links as they are from the page of a rule."""
    led = LINK.sub(r"[\g<words>](../../rules/\g<target>\g<anchor>)", text)
    return led.replace("](#", f"](../../rules/{book}#")


def run(*arguments: str) -> str:
    """Return what a command of `cepheid` prints."""
    printed = io.StringIO()
    with (
        patch.dict(os.environ, COLUMNS=COLUMNS),
        contextlib.redirect_stdout(printed),
        contextlib.suppress(SystemExit),
    ):
        main(arguments)
    return printed.getvalue()


# What is recorded of a benchmark ------------------------------------------------------------------


Show = Callable[[Definition], Iterator[str]]
"""Yields paragraphs and tables of what is recorded at a scale."""
RESOLUTION = ("runs", "reference", "scatter of crossings", "a pair shows", "in a table of 10",
              "recorded spread", "then a pair")  # fmt: skip


def describe_records(name: str) -> str:
    """Return what the files beside a benchmark's README record of it, as tables."""
    parts = []
    for title, (command, show) in SECTIONS.items():
        for scale in definition.scales(name):
            if found := [*show(definition.load(name, scale))]:
                shown = f"`cepheid {command.format(name=name, scale=scale)}`"
                parts += [f"## {title}, {scale} scale", shown, *found]
    return "\n\n".join(["", *parts, ""])


def draw_table(columns: Sequence[Column], rows: Sequence[Any]) -> str:
    """Return rows as a table in Markdown, without columns that are empty."""
    shown = [each for each in columns if each.head and any(map(each.format, rows))]
    lines = [[str(each.head) for each in shown], ["---"] * len(shown)]
    lines += [[each.format(row) for each in shown] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def show_evidence(one: Definition) -> Iterator[str]:
    """Yield the correct runs, the broken variants and the shallow baselines, and their margins."""
    models: dict[str, list[Curve]] = {}
    for file, kind in ((evidence.FILE, ""), (evidence.BASELINES_FILE, "shallow baseline: ")):
        found = evidence.load(one, file)
        for curve in found.curves if found else ():
            models.setdefault(kind + curve.variant.replace("_", " "), []).append(curve)
    if models:
        yield f"Targets: {' and '.join(map(str, one.quality))}."
        yield draw_table(list_columns(one), [*models.items()])
        yield margins.describe(one).capitalize()


def list_columns(one: Definition) -> Sequence[Column]:
    """Return the columns of a model: seeds, samples to the targets, and the best of each metric."""

    def describe_ends(row: tuple[str, Sequence[Curve]]) -> str:
        ends = Counter(curve.count_samples_to_target(one) for curve in row[1])
        ordered = sorted(ends.items(), key=lambda each: each[0] or math.inf)
        return ", ".join(
            f"{end:,} ({count})" if end else f"never ({count})" for end, count in ordered
        )

    def describe_best(target: QualityTarget, row: tuple[str, Sequence[Curve]]) -> str:
        choose = min if target.better == "lower" else max
        seen = [[quality[target.metric] for _, quality in curve.evaluations
                 if target.metric in quality] for curve in row[1]]  # fmt: skip
        best = sorted(map(choose, filter(None, seen)))
        return format_ends((*best[:1], *best[-1:]))

    unit = "samples" if one.kind == "train" else "images"
    return (
        Column("model", lambda row: row[0]),
        Column("seeds", lambda row: len(row[1])),
        Column(f"{unit} to the targets (seeds)", describe_ends),
        *(Column(f"best {each.metric}", partial(describe_best, each)) for each in one.quality),
        Column("seconds", lambda row: statistics.median(c.seconds for c in row[1]), "{:,.0f}"),
    )


def show_points(one: Definition) -> Iterator[str]:
    """Yield the reference convergence points."""
    if one.kind == "train" and rcp.load(one.name, one.scale):
        request = ask(one)
        measured = convergence_points.measure(request, ())
        yield draw_table(convergence_points.list_columns(request, measured), measured.rows)


def show_resolution(one: Definition) -> Iterator[str]:
    """Yield the smallest difference that so many runs show."""
    if facts := evidence.read_file(one.name, evidence.RESOLUTION_FILE).get(one.scale):
        columns = [each for each in resolution.COLUMNS if each.head in RESOLUTION]
        yield draw_table(columns, [resolution.Resolution(**facts)])


def show_comparisons(one: Definition) -> Iterator[str]:
    """Yield the epochs to the targets with the settings of each recorded comparison."""
    for name in evidence.read_file(one.name, epochs.MEASURED).get(one.scale, ()):
        title = epochs.load_comparison(one.name, one.scale, name).title
        if table := draw_comparison(one.name, one.scale, name):
            yield f"### {title}\n\n`--compare {name}`\n\n{table}"


def draw_comparison(benchmark: str, scale: str, name: str) -> str:
    """Return the table of a comparison's recorded runs, and its source; "" where it has none."""
    comparison = epochs.load_comparison(benchmark, scale, name)
    one = comparison.vary(definition.load(benchmark, scale))
    request = ask(one)
    runs = epochs.load_runs(one, comparison)
    if not runs:
        return ""
    measured = epochs_study.describe(request, comparison, runs)
    table = draw_table(epochs_study.list_columns(request, measured), measured.rows)
    return "\n\n".join([table, *measured.notes])


def show_published(one: Definition) -> Iterator[str]:
    """Yield the epochs by batch size, beside those of MLPerf's rounds."""
    ours = epochs.list_by_batch_size(one) if one.kind == "train" else {}
    if ours and epochs.load_published(one.name):
        measured = epochs_study.list_results(ask(one), ours)
        yield draw_table(epochs_study.STUDY.columns, measured.rows)  # type: ignore[arg-type]


def show_sweeps(one: Definition) -> Iterator[str]:
    """Yield the sweeps of the cosmology paper's figures, machine by machine."""
    for path in sorted(SWEEPS.glob(f"{one.name}-{one.scale}-*.json")):
        sweep = read_sweep(path.stem)
        measured = f"{MEASURES[sweep.measure]}, {sweep.machine}"
        yield f"`{path.relative_to(ROOT)}`: {measured}\n\n{draw_sweep(path.stem)}"


def draw_sweep(name: str, other: str = "") -> str:
    """Return the table of a sweep, beside another machine's and reported times."""
    sweep = read_sweep(name)
    if other:
        sweep = replace(sweep, other=read_sweep(other))
    return draw_table(sweep.list_columns(), sweep.points)


def read_sweep(name: str) -> Sweep:
    """Return a recorded sweep with the reported times of its benchmark."""
    facts, points = read_points(SWEEPS / f"{name}.json", "sweep.json", Point, "sweep")
    configuration = facts["configuration"]
    return Sweep(configuration, points, published=load_published(configuration["benchmark"]))


def draw_quality(name: str) -> str:
    """Return the table of the quality that trainings reach by batch size."""
    _, points = read_points(SWEEPS / f"{name}.json", "quality.json", QualityPoint, "sweep")
    return draw_table(quality.list_columns(points), quality.group_by_size(points))


def show_results(one: Definition) -> Iterator[str]:
    """Yield the table of our results, from their page."""
    title = f"## {one.name}, {one.scale} scale".replace("_", r"\_")
    for part in re.split(r"\n(?=## )", RESULTS.read_text(encoding="utf-8")):
        if part.startswith(title):
            yield part.partition("\n")[2].partition("<!--")[0].strip()


def ask(one: Definition) -> Request:
    """Return a request for what is recorded: nothing is measured."""
    arguments = SimpleNamespace(benchmark=one.name, scale=one.scale)
    return Request(arguments, None)  # type: ignore[arg-type]  # nothing is displayed


SECTIONS: Mapping[str, tuple[str, Show]] = {  # title, the command that records it, and its tables
    "Evidence": ("measure targets {name} --scale {scale}", show_evidence),
    "Reference convergence points": ("rcp {name} --scale {scale}", show_points),
    "Resolution": ("measure resolution {name} --scale {scale}", show_resolution),
    "Results": ("summary submissions", show_results),
    "Settings compared": ("measure epochs {name} --scale {scale} --compare …", show_comparisons),
    "Epochs by batch size": ("measure epochs {name} --scale {scale}", show_published),
    "The paper's figure": ("measure sweep {name} --scale {scale}", show_sweeps),
}


# Tables between the marks of a page ---------------------------------------------------------------


def list_devices() -> str:
    """Return the table of what makers state of devices, from rules/devices.yaml."""
    read: dict[str, Any] = {
        name.upper(): lambda each, name=name: each.peak_tflops.get(name)
        for name in ("fp32", "tf32", "bf16", "fp16", "fp8")
    }
    read |= {"FP64": "fp64_tflops", "INT8": "int8_tops", "memory": "memory_gb"}
    read |= {"GB/s": "memory_gb_per_second", "links": "link_gb_per_second", "watts": "watts"}
    columns = [Column(head, of, "{:,g}") for head, of in read.items()]
    return draw_table([Column("device", "device"), *columns], load_devices())


TABLES: Mapping[str, Callable[..., str]] = {
    "devices": list_devices,
    "results": lambda: run("summary", str(ROOT / "submissions"), "--format", "markdown"),
    "epochs": draw_comparison,
    "sweep": draw_sweep,
    "quality": draw_quality,
}
WRITTEN = (
    RESULTS,
    *sorted(ROOT.glob("docs/second-order/*.md")),
    ROOT / "docs/galaxies/figure-2.md",
    ROOT / "docs/devices.md",
)


def write_tables(path: Path) -> str:
    """Write the tables between the marks of a page; return its text."""

    def draw(marked: re.Match[str]) -> str:
        return f"{marked[1]}\n{TABLES[marked[2]](*marked[3].split()).rstrip()}\n\n"

    text = BETWEEN.sub(draw, path.read_text(encoding="utf-8"))
    atomic_write(path, text)
    return text


if __name__ == "__main__":
    for page in WRITTEN:
        write_tables(page)
