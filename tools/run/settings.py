"""What `cepheid run --list` shows: all benchmarks, or everything that can be set in one."""

from collections.abc import Mapping, Sequence

from cepheid.reference.run.execution import describe_choices
from cepheid.rules import definition
from cepheid.rules.definition import Definition
from cepheid.rules.hyperparameters import ANY, Allowed, Hyperparameter


def list_benchmarks() -> str:
    """Return a table of benchmarks, scales and targets."""
    lines = []
    for name in definition.names():
        for scale in definition.scales(name):
            chosen = definition.load(name, scale)
            lines.append(f"{name:<20} {scale:<5} {_describe_targets(chosen)}")
            lines.append(f"{'':<26} definition_digest {chosen.digest}")
    return "\n".join(lines)


def list_settings(chosen: Definition) -> str:
    """Return what ``--set`` knows of a benchmark at one scale, and what each division allows."""
    title = f"{chosen.name}, {chosen.scale} scale: {_describe_targets(chosen)}"
    about = [title, *([chosen.summary] if chosen.summary else [])]
    known = chosen.hyperparameters.values()
    adjustable = [each for each in known if not (each.is_constant and each.open == each.closed)]
    hyperparameters = [
        {
            "hyperparameter": each.name,
            "default": each.default,
            "closed division": "the default" if each.is_constant else _describe(each.closed),
            "open division": _describe_open(each),
        }
        for each in adjustable
    ]
    constants = [
        {"constant in both divisions": each.name, "value": each.default}
        for each in known
        if each not in adjustable
    ]
    tables = ["\n".join(about), _format(hyperparameters)]
    if constants:
        tables.append(_format(constants))
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
    return "\n\n".join(tables)


def _describe_targets(chosen: Definition) -> str:
    provisional = " (provisional targets)" if chosen.provisional else ""
    return " and ".join(map(str, chosen.quality)) + provisional


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
    """Return what the open division allows."""
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
    from tabulate import tabulate

    return tabulate(rows, headers="keys", disable_numparse=True)
