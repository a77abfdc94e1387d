"""A study is one measurement of the laboratory: it is declared here, and ``run_study`` reads it.

A module of ``cepheid.measure.studies`` declares a ``Study`` as its ``STUDY``. What all of them do
alike is in this module: they refuse wrong numbers before anything is measured, start ranks, print a
table, write JSON and figures, and say where other work on the machine disturbed the times.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from cepheid.measure.engine.noise import REAL, SYNTHETIC
from cepheid.measure.engine.options import Option
from cepheid.reference.machine.accelerators import use_device
from cepheid.reference.machine.placement import find_placement
from cepheid.reference.machine.use import measure_load
from cepheid.rules import definition as definitions
from cepheid.rules import extras
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError, cannot_write
from cepheid.rules.host import atomic_write
from cepheid.rules.layout import lay_out, wrap

if TYPE_CHECKING:
    from cepheid.reference.run.config import RunConfig
    from cepheid.reference.session.observer import Observer
    from cepheid.reference.torch.ranks.distributed import TorchRanks

    OpenDisplay = Callable[[IO[str] | None], Observer]
    """Opens what shows progress: on the terminal, or in a file as on a terminal."""

BUSY_SHARE = 0.5  # of the processors: beyond that load other work disturbs the measurement


@dataclass(frozen=True)
class Column:
    """One value of a row, below its ``head`` in a table and by its ``key`` in files, if it has one.

    ``read`` returns the value from what was measured, or names its attribute. ``show`` makes text
    of it, or is a format such as "{:,}"; None is an empty cell.
    """

    head: str | None
    read: Callable[[Any], Any] | str
    show: Callable[[Any], str] | str = "{}"
    key: str = ""

    def find(self, row: Any) -> Any:
        """Return the value of a row."""
        return attrgetter(self.read)(row) if isinstance(self.read, str) else self.read(row)

    def format(self, row: Any) -> str:
        """Return the cell of a row."""
        value = self.find(row)
        if value is None:
            return ""
        return self.show.format(value) if isinstance(self.show, str) else self.show(value)


@dataclass(frozen=True)
class Table:
    """Rows for people, below their title and above a note."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Any]
    note: str = ""


@dataclass(frozen=True)
class Request:
    """What the user asks for, and the ranks that measure it, once they have started."""

    arguments: Any
    open_display: "OpenDisplay"
    ranks: "TorchRanks | None" = None

    @cached_property
    def observer(self) -> "Observer":
        """What shows the progress, opened when it is needed: it needs more than the core."""
        return self.open_display(None)

    @property
    def command(self) -> str:
        """The command line as the user gave it, "" for a program that runs a study by itself."""
        return str(getattr(self.arguments, "command", ""))

    @cached_property
    def definition(self) -> Definition:
        """The definition of the benchmark at the scale of the command line."""
        return definitions.load(self.arguments.benchmark, self.arguments.scale)

    @cached_property
    def data_root(self) -> Path:
        """The folder of all datasets."""
        return Path(self.arguments.data or os.environ.get("CEPHEID_DATA", "data"))

    def configure(self, seed: int = 1, *settings: str) -> "RunConfig":
        """Return the configuration of a run with the settings of ``--set``, and further ones.

        It is one of the open division: what is measured need not be allowed in a closed result.
        """
        from cepheid.reference.run.config import configure
        from cepheid.reference.session.request import replace_old_keys

        asked = [*getattr(self.arguments, "overrides", ()), *settings]
        current, _ = replace_old_keys(asked, self.definition.execution)
        root = self.data_root
        return configure(
            self.definition, division="open", overrides=current, data_root=root, seed=seed
        )

    def prepare_on_ranks(self) -> "TorchRanks":
        """Prepare the data that are asked for on the first rank; return all ranks afterwards."""
        from cepheid.reference.session.observer import prepare_data

        assert self.ranks is not None
        if self.ranks.is_first and getattr(self.arguments, "input", REAL) == REAL:
            prepare_data(self.definition, self.data_root, self.observer)
        self.ranks.barrier()
        return self.ranks

    def find_folder(self, what: str) -> Path:
        """Return the folder of ``--output``, by default one in results/."""
        usual = Path("results", f"{what}-{self.arguments.benchmark}-{self.arguments.scale}")
        return Path(self.arguments.output or usual)

    def require_training(self, why: str) -> None:
        """Raise UserError for a benchmark that generates, which ``why`` explains."""
        if self.definition.kind != "train":
            raise UserError(f"{self.definition.name} generates and does not train{why}")

    def require_extras(self) -> Definition:
        """Return the definition. Raise UserError where a package is missing with which it runs.

        Noise needs none of those that read a dataset.
        """
        is_real = getattr(self.arguments, "input", REAL) != SYNTHETIC
        extras.require_for_runs(self.definition.extras if is_real else ())
        return self.definition


@dataclass(frozen=True)
class Measured:
    """What a study found: the rows of its table, and all that a reader needs beside them.

    ``tables`` follow the first one, ``notes`` stand at the end. ``facts`` are for the JSON file,
    ``found`` for columns and figure, in whatever form the study has it.
    ``is_fine`` is False where a run missed its target or a size could not be measured: exit code 1.
    """

    rows: Sequence[Any] = ()
    title: str = ""
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    is_fine: bool = True
    found: Any = None


@dataclass(frozen=True)
class Study:
    """A measurement: what is compared, how it is measured, and how a reader sees it.

    ``arms`` returns what is compared and raises UserError for what cannot be; nothing is measured
    or prepared before. ``measure`` measures what is not recorded yet, and returns all. ``figure``
    draws it; it returns the files where they are not the one that was asked for. ``others`` are
    studies that the option of their name chooses instead. ``is_timed`` studies say where other work
    disturbed them; those with ``has_ranks`` get the ranks of this command, all of which call
    ``measure``. `--help` shows the description before the options, the examples after them.
    """

    name: str
    arms: Callable[[Request], Any]
    measure: Callable[[Request, Any], Measured]
    columns: Callable[[Request, Measured], Sequence[Column]] | Sequence[Column] = ()
    figure: Callable[[Path, Request, Measured], Iterable[Path] | None] | None = None
    is_timed: bool = False
    has_ranks: bool = False
    others: Sequence["Study"] = ()
    description: str = ""
    examples: str = ""
    options: Sequence[Option] = ()


def run_study(study: Study, arguments: argparse.Namespace, open_display: "OpenDisplay") -> bool:
    """Measure what is missing, print tables, write JSON and figures; return True if all is fine.

    Raises UserError for wrong use, before anything is measured or prepared.
    """
    for option in study.options:
        option.refuse(arguments)
    if any(option.name == "device" for option in study.options):
        use_device(arguments)
    for other in study.others:
        if getattr(arguments, other.name) not in (None, False):
            study = other
    request = Request(arguments, open_display)
    arms = study.arms(request)
    figure = _prepare_figure(arguments) if study.figure else None
    load = measure_load()
    measured, machine = _measure(study, request, arms)
    if find_placement().rank:
        return measured.is_fine
    if text := _describe(study, request, measured):
        print(text)
    if study.is_timed and load > BUSY_SHARE * (os.cpu_count() or 1):
        print(
            f"\nother work was running here (load {load:.1f} before this began):\n"
            "absolute times are unreliable, ratios approximate"
        )
    if measured.facts and arguments.output:
        loaded = {"load_before": load} if study.is_timed else {}
        write_json(arguments.output, {**measured.facts, **machine, **loaded})
        print(f"written: {arguments.output}")
    if figure and study.figure:
        for path in study.figure(figure, request, measured) or [figure]:
            print(f"written: {path}")
    return measured.is_fine


def _prepare_figure(arguments: argparse.Namespace) -> Path | None:
    """Return where to draw, if anywhere. Raises UserError now rather than after hours."""
    file: Path | None = getattr(arguments, "figure", None)
    folder: Path | None = getattr(arguments, "figures", None)
    if not (file or folder):
        return None
    extras.require("matplotlib")
    if folder:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = f"cannot make this folder ({error.strerror})"
            raise UserError(f"--figures {folder}: {reason}") from error
    elif file and not file.parent.is_dir():
        raise UserError(
            f"--figure {file}: cannot write it, because {file.parent} is no folder; fix: make it"
        )
    return folder or file


def _measure(study: Study, request: Request, arms: Any) -> tuple[Measured, Mapping[str, Any]]:
    """Return what was found and, of ranks, on what machine, by which command and code."""
    if not study.has_ranks:
        return study.measure(request, arms), {}
    from cepheid.measure.engine.provenance import describe_making
    from cepheid.reference.torch.ranks.distributed import start_ranks

    with start_ranks() as ranks:
        measured = study.measure(replace(request, ranks=ranks), arms)
        is_kept = measured.facts and ranks.is_first
        return measured, describe_making(request.arguments, ranks) if is_kept else {}


def _describe(study: Study, request: Request, measured: Measured) -> str:
    """Return title, tables and notes as one text."""
    columns = study.columns(request, measured) if callable(study.columns) else study.columns
    tables = [Table(measured.title, columns, measured.rows), *measured.tables]
    parts = [
        part
        for table in tables
        for part in (wrap(table.title), format_table(table), wrap(table.note))
    ]
    return "\n\n".join(part for part in (*parts, wrap("\n".join(measured.notes))) if part)


def format_table(table: Table) -> str:
    """Return the rows as a table for people, without columns that are empty; "" for no rows."""
    shown = [each for each in table.columns if each.head is not None]
    shown = [each for each in shown if any(map(each.format, table.rows))]
    cells = [[column.format(row) for column in shown] for row in table.rows]
    return "\n".join(lay_out([[str(column.head) for column in shown], *cells])) if shown else ""


def name_values(columns: Sequence[Column], row: Any) -> dict[str, Any]:
    """Return the values of a row by the keys of the columns that have one, for a file."""
    return {column.key: column.find(row) for column in columns if column.key}


def make_table(title: str, rows: Sequence[Mapping[str, Any]], note: str = "") -> Table:
    """Return the table of rows that are mappings, with a column for each key of any of them."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return Table(title, [Column(key, partial(_get, key)) for key in keys], rows, note)


def _get(key: str, row: Mapping[str, Any]) -> Any:
    return row.get(key)


def write_json(path: Path, facts: Mapping[str, Any]) -> None:
    """Write a file, and its folder where that is missing. Raises UserError where that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, json.dumps(facts, indent=1) + "\n")
    except OSError as error:
        raise cannot_write(path, error) from error
