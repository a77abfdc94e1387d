"""What `cepheid run --list` shows: all benchmarks, or everything that can be set in one."""

from collections.abc import Mapping, Sequence

from cepheid.reference.run.execution import describe_choices
from cepheid.rules import definition
from cepheid.rules.definition import Definition
from cepheid.rules.hyperparameters import Hyperparameter


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
    hyperparameters = [
        {
            "hyperparameter": each.name,
            "default": each.default,
            "closed division": _describe_allowed(each),
            "open division": _describe_open(each),
        }
        for each in chosen.hyperparameters.values()
    ]
    tables = ["\n".join(about), _format(hyperparameters)]
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


def _describe_allowed(rule: Hyperparameter) -> str:
    """Return what the closed division allows: ``from 4 to 3,000``."""
    if rule.fixed or len(rule.choices) == 1 or rule.minimum == rule.maximum is not None:
        return "the default"
    if rule.choices:
        return ", ".join(map(str, rule.choices))
    words = [("from", rule.minimum), ("to", rule.maximum)]
    limits = [f"{word} {limit:,g}" for word, limit in words if limit is not None]
    for word, bounds in (("at least", rule.min_of), ("at most", rule.max_of)):
        limits += [
            f"{word} {'' if factor == 1 else f'{factor:g} × '}{name}"
            for name, factor in bounds.items()
        ]
    return " ".join(limits) or "any"


def _describe_open(rule: Hyperparameter) -> str:
    """Return what the reference knows beyond that in the open division."""
    if not isinstance(rule.default, str):
        return "any"
    if not rule.fixed:
        return "any that the implementation knows"
    return f"also {', '.join(map(str, rule.open))}" if rule.open else "the reference knows no other"


def _format_choices(title: str, choices: Mapping[str, Sequence[str]]) -> str:
    rows = [
        {title: name, "default": each[0], "or": describe_choices(name, each[1:])}
        for name, each in choices.items()
    ]
    return _format(rows)


def _format(rows: Sequence[Mapping[str, object]]) -> str:
    from tabulate import tabulate

    return tabulate(rows, headers="keys", disable_numparse=True)
