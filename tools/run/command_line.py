"""The command line of `cepheid run`: its options, the request that they make, and --list."""

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from cepheid.benchmarks import registry
from cepheid.reference.machine.accelerators import DEVICE_HELP, MODULE_HELP, use_device
from cepheid.reference.machine.placement import find_placement
from cepheid.reference.run.config import configure, limit_samples
from cepheid.reference.run.execution import describe_choices
from cepheid.reference.session.frameworks import find_framework, find_own_task
from cepheid.reference.session.request import Request, WantedRuns, replace_old_keys
from cepheid.rules import definition
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError, did_you_mean, find_elsewhere, find_meant
from cepheid.rules.host import BACKEND_VARIABLE, KERAS_BACKENDS
from cepheid.rules.hyperparameters import ANY, Allowed, Hyperparameter
from cepheid.rules.layout import lay_out, wrap
from cepheid.rules.systems import refuse_name
from cepheid.tools.console.arguments import list_keys, read_command
from cepheid.tools.run.costs import list_costs

MOST_RANKS = 1_000_000


COMMAND = read_command("run", device=DEVICE_HELP, module=MODULE_HELP)


def read_request(arguments: argparse.Namespace, *, is_continued: bool) -> Request:
    """Turn the command line into a request. Raises UserError for wrong use.

    No framework is imported for it, so that wrong use is answered at once.
    """
    if not arguments.benchmark:
        raise UserError("no benchmark given; `cepheid run --list` shows them all")
    chosen = definition.load(arguments.benchmark, arguments.scale)
    if arguments.limit is not None:
        chosen = limit_samples(chosen, arguments.limit)
        arguments.runs = arguments.runs or "1"  # a try
    if arguments.output is None:
        raise UserError("--output is missing: give the folder for the run logs")
    _refuse_output(arguments.output)
    refuse_name(arguments.submitter, "a submitter")

    from cepheid.reference.machine import system

    # A plan shows everything that the closed division refuses, not only the first value.
    is_closed_plan = arguments.dry_run and arguments.division == "closed"
    overrides, notes = replace_old_keys(arguments.overrides, chosen.execution)
    _refuse_options(overrides, chosen)
    if arguments.limit is not None:
        notes += (f"--limit {arguments.limit}: this run only tries, and never counts (T10)",)
    config = configure(
        chosen,
        division="open" if is_closed_plan else arguments.division,
        overrides=overrides,
        framework=arguments.framework,
        data_root=arguments.data,
        seed=arguments.seed,
        own_code=arguments.task is not None or is_closed_plan,
    )
    find_framework(arguments.framework)  # refused where there is none
    use_device(arguments)
    _choose_backend(arguments.framework, arguments.backend)
    task_module = "" if arguments.task else registry.find_task_module(chosen, arguments.framework)
    ranks, per_node = _read_planned_ranks(arguments)
    return Request(
        config=config,
        output=arguments.output,
        wanted=_read_wanted_runs(arguments.runs, chosen),
        submitter=arguments.submitter,
        system=system.read_description(arguments.system) if arguments.system else None,
        task_module=task_module,
        own_task=find_own_task(arguments.task) if arguments.task else None,
        planned_ranks=ranks,
        planned_ranks_per_node=per_node,
        notes=notes,
        is_continued=is_continued,
    )


def _refuse_options(overrides: Sequence[str], chosen: Definition) -> None:
    """Raise UserError for a setting that is an option, or means one."""
    options = [name for name in COMMAND.arguments if name.startswith("--")]
    settings = list_keys((chosen.name, chosen.scale))
    for key, _, text in (each.partition("=") for each in overrides):
        if key in settings or find_elsewhere(key):
            continue
        is_exact = f"--{key}" in options
        meant = f"--{key}" if is_exact else find_meant(key, settings, list_keys(()), options)
        if meant in options:
            value = text if is_exact else "…"
            raise UserError(f"--set {key}: it is an option; fix: {meant} {value}")


def _choose_backend(framework: str, backend: str | None) -> None:
    """Keep in the environment what Keras computes on: for modules, and for processes of the run.

    Raises UserError for one that our tasks do not know, and without Keras.
    """
    if backend is None:
        return
    if framework != "keras":
        raise UserError(f"--backend {backend}: only --framework keras has one; fix: leave it out")
    if backend not in KERAS_BACKENDS:
        known = ", ".join(KERAS_BACKENDS)
        guess = did_you_mean(backend, KERAS_BACKENDS)
        raise UserError(f"--backend {backend}: expected one of {known}{guess}")
    os.environ[BACKEND_VARIABLE] = backend


def _read_planned_ranks(arguments: argparse.Namespace) -> tuple[int, int]:
    """Return the planned ranks and those of a node; no ranks without ``--ranks``.

    Raises UserError where they make no sense.
    """
    ranks, per_node = arguments.ranks, arguments.ranks_per_node
    if ranks is None and per_node is None:
        return 0, 1
    if ranks is None:
        raise UserError("--ranks-per-node is given without --ranks")
    if not arguments.dry_run:
        raise UserError(
            f"--ranks {ranks}: only a plan (--dry-run) takes it; a launcher starts ranks, for "
            f"example torchrun --nproc-per-node {ranks} -m cepheid.tools.run_benchmark …"
        )
    if find_placement().world_size > 1:
        raise UserError("--ranks plans ranks that are not there; leave out the launcher")
    per_node = ranks if per_node is None else per_node
    if not 1 <= per_node <= ranks <= MOST_RANKS or ranks % per_node:
        raise UserError(
            f"--ranks {ranks} --ranks-per-node {per_node}: expected 1 to {MOST_RANKS:,} ranks, "
            "and a number per node that divides it"
        )
    return ranks, per_node


def _refuse_output(output: Path) -> None:
    """Raise UserError for a folder in which the runs would be taken for something else (S1)."""
    absolute = Path(os.path.abspath(output))
    if absolute.name == "submissions":
        raise UserError(f"--output {output}: holds submitters' folders; give {output}/<submitter>")
    if absolute.parent.name == "submissions":
        refuse_name(absolute.name, "a submitter")


def _read_wanted_runs(text: str | None, chosen: Definition) -> WantedRuns:
    """Return how many runs ``--runs`` asks for. Raises UserError where it is no such number."""
    required = chosen.runs.required
    if text is None:
        return WantedRuns(required, required)
    number = text.removeprefix("+")
    if not number.isdecimal() or not 1 <= int(number) <= required:
        raise UserError(
            f"--runs {text}: expected 1 to {required}, the number that a score needs, "
            "or +1 for one more"
        )
    return WantedRuns(required, int(number), is_additional=text.startswith("+"))


def list_benchmarks() -> str:
    """Return a table of benchmarks and scales with what each costs."""
    return f"{_format([*list_costs()])}\n\n{COMMAND.texts['legend']}"


def list_settings(chosen: Definition) -> str:
    """Return what ``--set`` knows of a benchmark at one scale, and what each division allows."""
    targets = " and ".join(map(str, chosen.quality))
    targets += " (provisional targets)" if chosen.provisional else ""
    title = f"{chosen.name}, {chosen.scale} scale: {targets}"
    about = [title, *([chosen.summary] if chosen.summary else [])]
    about += [f"{metric}: {meaning}" for metric, meaning in chosen.meanings.items()]
    about.append(f"definition_digest {chosen.digest}")
    known = chosen.hyperparameters.values()
    constants = [each for each in known if each.is_constant and each.open == each.closed]
    hyperparameters = [
        {
            "hyperparameter": each.name,
            "default": each.default,
            "closed division": "the default" if each.is_constant else _describe(each.closed),
            "open division": _describe_open(each),
        }
        for each in known
        if each not in constants
    ]
    fixed = [{"constant in both divisions": each.name, "value": each.default} for each in constants]
    tables = ["\n".join(about), *map(_format, filter(None, (hyperparameters, fixed)))]
    if chosen.variants:
        tables.append(_format_choices("variant, open division only", chosen.variants))
    if chosen.execution:
        tables.append(_format_choices("execution setting, both divisions", chosen.execution))
    if chosen.presets:
        rows = [
            {"--set preset=": name, "stands for": " ".join(settings)}
            for name, settings in chosen.presets.items()
        ]
        tables.append(_format(rows))
    tables.append("precision, compile, threads and more, which all benchmarks know: see --help")
    return wrap("\n\n".join(tables))


def _describe(allowed: Allowed) -> str:
    """Return what a division allows: ``from 4 to 3,000``."""
    if allowed.choices:
        return ", ".join(map(str, allowed.choices))
    words = [("from", allowed.minimum), ("to", allowed.maximum)]
    limits = [f"{word} {limit:,g}" for word, limit in words if limit is not None]
    for word, bounds in (("at least", allowed.at_least), ("at most", allowed.at_most)):
        limits += [
            f"{word} {'' if factor == 1 else f'{factor:g} × '}{name}"
            for name, factor in bounds.items()
        ]
    return " ".join(limits) or ANY


def _describe_open(rule: Hyperparameter) -> str:
    if rule.open.choices:
        return f"also {_describe(rule.open)}"
    if isinstance(rule.default, str):
        return "any that the implementation knows"
    return _describe(rule.open)


def _format_choices(title: str, choices: Mapping[str, Sequence[str]]) -> str:
    rows = [
        {title: name, "default": each[0], "or": describe_choices(name, each[1:])}
        for name, each in choices.items()
    ]
    return _format(rows)


def _format(rows: Sequence[Mapping[str, object]]) -> str:
    cells = [[str(value) for value in row.values()] for row in rows]
    return "\n".join(lay_out([[*rows[0]], *cells]))
