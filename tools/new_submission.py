"""`cepheid new-submission`: begin a submitter's folder, with a task that runs."""

import argparse
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from string import Template

from rules import definition
from rules.definition import Definition
from rules.documents import FILL_IN, find_unfilled
from rules.errors import UserError, did_you_mean
from rules.events import CHOICES
from tools.arguments import add_data_option, command_parser
from tools.cli import EXIT_FINE, run_tool
from tools.writing import make_new_folder, write_new

TEMPLATES = Path(__file__).parent / "templates" / "submission"
DIVISIONS = CHOICES["submission_division"]
WHAT_DIFFERS = "model, optimizer, schedule, hyperparameters in words, and what differs (T13)"
EXAMPLES = """\
examples:
  cepheid new-submission acme --benchmark galaxy_shape --scale mini
      submissions/acme/ with a description of this machine and a copy of the reference's task
  cepheid new-submission acme --benchmark galaxy_bnn --division open
      one benchmark more in the same folder; what is there stays as it is

What is left to do is told at the end, and by `cepheid check submissions/acme` at any time.

exit codes: 0 written; 2 wrong use, for example a name that cannot be one
"""


def parser() -> argparse.ArgumentParser:
    """The command line of `cepheid new-submission`."""
    made = command_parser(
        "new-submission",
        "Begin a submission: description of this machine, a task to change, what starts it.",
        EXAMPLES,
    )
    add = made.add_argument
    add("name", help="the submitter: letters, digits, '.', '_' and '-'")
    add("--benchmark", required=True, help="which benchmark (cepheid run --list names them)")
    add("--scale", default="full", help="mini or full (default)")
    add("--division", default="closed", help="closed (default) or open")
    add(
        "--submissions",
        type=Path,
        default=Path("submissions"),
        metavar="DIR",
        help="where the folder is made (default: submissions)",
    )
    add_data_option(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Write what a submission needs beside its results, and say what comes next."""
    arguments = parser().parse_args(argv)
    if not definition.NAME.fullmatch(arguments.name):
        raise UserError(
            f"{arguments.name[:100]!r} cannot be the name of a submitter: letters, digits, '.', "
            "'_' and '-', at most 64 (rule S1)"
        )
    if arguments.division not in DIVISIONS:
        guess = did_you_mean(arguments.division, DIVISIONS)
        raise UserError(f'no division "{arguments.division}"{guess} (all: {", ".join(DIVISIONS)})')
    chosen = definition.load(arguments.benchmark, arguments.scale)
    root = arguments.submissions / arguments.name
    code = root / "benchmarks" / chosen.name
    if os.path.lexists(code):
        raise UserError(f"{code}: is there already; change it, or move it away")
    system = _system(root, arguments.name, arguments.data)
    _write_code(code, _words(chosen, arguments, str(system["system"])))
    if not any(root.glob("LICENSE*")):
        licence = (definition.ROOT / "LICENSE").read_text(encoding="utf-8")
        write_new(root / "LICENSE", licence)
    if arguments.division == "open":
        result = root / "results" / str(system["system"]) / f"{chosen.name}-{chosen.scale}-open"
        if not (result / "README.md").exists():
            write_new(result / "README.md", f"{FILL_IN}{WHAT_DIFFERS}\n")
    print(_next_steps(root, code, system, chosen, arguments.division))
    return EXIT_FINE


def _system(root: Path, submitter: str, data: Path) -> dict[str, object]:
    """The description that is there, or one of this machine."""
    there = sorted((root / "systems").glob("*.json"))
    if there:
        from reference.machine import system

        return system.read_description(there[0])
    from tools import describe_system

    content = describe_system.this_machine(submitter, data)
    describe_system.write(root / "systems" / f"{content['system']}.json", content)
    return content


def _words(chosen: Definition, arguments: argparse.Namespace, system: str) -> dict[str, str]:
    """What stands for the words of the templates."""
    return {
        "benchmark": chosen.name,
        "title": chosen.title,
        "scale": chosen.scale,
        "division": arguments.division,
        "submitter": arguments.name,
        "system": system,
        "runs": str(chosen.runs.required),
        "fill_in": FILL_IN,
    }


def _write_code(folder: Path, words: dict[str, str]) -> None:
    """The task and what it imports, README and run script: all of it or nothing."""
    with make_new_folder(folder) as made:
        for name, text in starter(words["benchmark"]).items():
            (made / name).write_text(text, encoding="utf-8")
        for template in sorted(TEMPLATES.iterdir()):
            text = Template(template.read_text(encoding="utf-8")).substitute(words)
            (made / template.name).write_text(text, encoding="utf-8")
        (made / "run.sh").chmod(0o755)


def starter(benchmark: str) -> dict[str, str]:
    """The reference's task and the modules of its folder that it imports, by file name; they import
    each other as parts of a package, wherever that lies."""
    source = definition.BENCHMARKS / benchmark
    found: dict[str, str] = {}
    waiting = ["task"]
    while waiting:
        name = waiting.pop()
        path = source / f"{name}.py"
        if f"{name}.py" in found or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        waiting += _own_imports(text, benchmark)
        text = re.sub(rf"^(\s*from )benchmarks\.{benchmark}\.", r"\1.", text, flags=re.MULTILINE)
        text = re.sub(rf"^(\s*from )benchmarks\.{benchmark} ", r"\1. ", text, flags=re.MULTILINE)
        found[f"{name}.py"] = text
    if not found:
        raise UserError(f"{benchmark} has no task in torch that could be copied")
    return found


def _own_imports(text: str, benchmark: str) -> Iterator[str]:
    """The modules of the benchmark's own folder that a file imports."""
    yield from re.findall(rf"^\s*from benchmarks\.{benchmark}\.(\w+)", text, re.MULTILINE)
    for names in re.findall(rf"^\s*from benchmarks\.{benchmark} import (.+)", text, re.MULTILINE):
        yield from re.findall(r"\w+", names)


def _next_steps(
    root: Path, code: Path, system: dict[str, object], chosen: Definition, division: str
) -> str:
    described = root / "systems" / f"{system['system']}.json"
    steps = [
        f"change {code / 'task.py'}: it is a copy of the reference's and runs as it is",
        f"{code / 'run.sh'}    ({chosen.runs.required} runs; `--runs 1` tries one)",
        *(f"fill in {key} of {described}" for key, _ in find_unfilled(system)),
        f"write the rest of {code / 'README.md'}",
        f"cepheid check {root}",
        f"cepheid pack {root}",
    ]
    if division == "open":
        steps.insert(-2, f"say what differs in {root}/results/*/*-open/README.md")
    lines = [f"  {number}. {step}" for number, step in enumerate(steps, 1)]
    return "\n".join([f"{root}: begun. What is left to do:", *lines])


if __name__ == "__main__":
    run_tool(main)
