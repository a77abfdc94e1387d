"""`cepheid new-submission`: begin a submitter's folder with a task that runs."""

import argparse
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from cepheid.reference.machine.system import read_description
from cepheid.rules import definition, extras
from cepheid.rules.definition import Definition
from cepheid.rules.documents import FILL_IN, find_unfilled
from cepheid.rules.errors import UserError, did_you_mean
from cepheid.rules.events import CHOICES
from cepheid.rules.host import IS_CHECKOUT, ROOT
from cepheid.rules.layout import wrap
from cepheid.rules.systems import find_organisation, refuse_name
from cepheid.tools.console.arguments import read_command
from cepheid.tools.console.program import (
    EXIT_FINE,
    fill_templates,
    make_new_folder,
    run_tool,
    write_new,
)
from cepheid.tools.describe_system import describe_machine
from cepheid.tools.describe_system import write as write_description

TEMPLATES = Path(__file__).parent / "templates" / "submission"
DIVISIONS = CHOICES["submission_division"]
WHAT_DIFFERS = "model, optimizer, schedule, hyperparameters in words, and what differs (T13)"


COMMAND = read_command("new-submission")


def main(argv: Sequence[str] | None = None) -> int:
    """Write what a submission needs beside its results, and print what is left to do."""
    arguments = COMMAND.parse(argv)
    refuse_name(arguments.name, "a submitter")
    if arguments.division not in DIVISIONS:
        guess = did_you_mean(arguments.division, DIVISIONS)
        raise UserError(f'no division "{arguments.division}"{guess} (all: {", ".join(DIVISIONS)})')
    chosen = definition.load(arguments.benchmark, arguments.scale)
    root = arguments.submissions / arguments.name
    if Path(os.path.abspath(root)).parent.name != "submissions":
        raise UserError(
            f"{arguments.submissions}: must be called submissions, as rule S1 asks, or the checker "
            f"takes {arguments.name} for no submission; give --submissions a folder of that name"
        )
    code = root / "benchmarks" / chosen.name
    given = read_description(arguments.system) if arguments.system else None
    if os.path.lexists(code):
        if given is None:
            raise UserError(
                f"{code}: already exists; change it, or move it away; --system FILE adds another "
                "system to it"
            )
        print(_add_system(root, code, given, arguments))
        return EXIT_FINE
    system = _find_or_describe_system(root, find_organisation(root), arguments.data, given)
    _write_code(code, _collect_words(chosen, arguments, str(system["system"])))
    if not any(root.glob("LICENSE*")):
        write_new(root / "LICENSE", read_licence())
    if arguments.division == "open":
        result = root / "results" / str(system["system"]) / f"{chosen.name}-{chosen.scale}-open"
        if not (result / "README.md").exists():
            write_new(result / "README.md", f"{FILL_IN}{WHAT_DIFFERS}\n")
    print(wrap(_describe_next_steps(root, code, system, chosen, arguments.division)))
    return EXIT_FINE


def _find_or_describe_system(
    root: Path, submitter: str, data: Path, given: dict[str, object] | None
) -> dict[str, object]:
    """Return the description that was given, that in the folder, or one of this machine.

    It lies in the folder afterwards. Raises UserError where another one has its name there.
    """
    present = sorted((root / "systems").glob("*.json"))
    if given is None and present:
        return read_description(present[0])
    content = describe_machine(submitter, data) if given is None else given
    content = {**content, "submitter": submitter}
    path = root / "systems" / f"{content['system']}.json"
    if path in present and read_description(path) == content:
        return content
    write_description(path, content)
    return content


def _add_system(
    root: Path, code: Path, given: Mapping[str, object], arguments: argparse.Namespace
) -> str:
    """Add a system to a submission whose code is there; return how its runs are made."""
    content = {**given, "submitter": find_organisation(root)}
    path = root / "systems" / f"{content['system']}.json"
    if not (path.exists() and read_description(path) == content):
        write_description(path, content)
    script = code / "run.sh"
    text = script.read_text(encoding="utf-8") if script.is_file() else ""
    asked = {"scale": arguments.scale, "division": arguments.division}
    other = [f" --{key} {value}" for key, value in asked.items() if f"--{key} {value}" not in text]
    run = f"{script} --system {path}{''.join(other)}"
    return f"{path}: written. Its runs, with the same code:\n  {run}"


def _collect_words(
    chosen: Definition, arguments: argparse.Namespace, system: str
) -> dict[str, str]:
    return {
        "benchmark": chosen.name,
        "title": chosen.title,
        "scale": chosen.scale,
        "division": arguments.division,
        "submitter": arguments.name,
        "system": system,
        "runs": str(chosen.runs.required),
        "fill_in": FILL_IN,
        "install": extras.format_command(extras.list_extras(chosen.extras), ".venv/bin/pip"),
    }


def _write_code(folder: Path, words: dict[str, str]) -> None:
    """Write the task and what it imports, README and run script: everything or nothing."""
    with make_new_folder(folder) as new:
        for name, text in copy_task(words["benchmark"]).items():
            (new / name).write_text(text, encoding="utf-8")
        fill_templates(TEMPLATES, words, new)
        (new / "run.sh").chmod(0o755)


def copy_task(benchmark: str) -> dict[str, str]:
    """Return the reference's task and the modules of its folder that it imports, by file name.

    Their imports of each other become relative, so that the folder may lie anywhere.
    """
    source, package = definition.BENCHMARKS / benchmark, rf"cepheid\.benchmarks\.{benchmark}"
    texts: dict[str, str] = {}
    waiting = ["task"]
    while waiting:
        name = waiting.pop()
        path = source / f"{name}.py"
        if f"{name}.py" in texts or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        waiting += _find_imports(text, package)
        text = re.sub(rf"(?m)^(\s*from ){package}\.", r"\1.", text)
        texts[f"{name}.py"] = re.sub(rf"(?m)^(\s*from ){package} ", r"\1. ", text)
    if not texts:
        raise UserError(f"{benchmark} has no task for torch to copy")
    return texts


def _find_imports(text: str, package: str) -> Iterator[str]:
    """Yield the modules of a package, a pattern, that a file imports."""
    yield from re.findall(rf"(?m)^\s*from {package}\.(\w+)", text)
    for names in re.findall(rf"(?m)^\s*from {package} import (.+)", text):
        yield from re.findall(r"\w+", names)


def _describe_next_steps(
    root: Path, code: Path, system: dict[str, object], chosen: Definition, division: str
) -> str:
    described = root / "systems" / f"{system['system']}.json"
    steps = [
        f"change {code / 'task.py'}: it is a copy of the reference's task and runs as it is",
        f"{code / 'run.sh'}    ({chosen.runs.required} runs; `--runs 1` makes only one)",
        *(f"fill in {key} of {described}" for key, _ in find_unfilled(system)),
        f"write the rest of {code / 'README.md'}",
        f"`cepheid check {root}`",
        f"`cepheid pack {root}`",
    ]
    if division == "open":
        steps.insert(-2, f"describe what differs in {root}/results/*/*-open/README.md")
    lines = [f"  {number}. {step}" for number, step in enumerate(steps, 1)]
    return "\n".join([f"{root}: written. What is left to do:", *lines])


def read_licence() -> str:
    """Return the text of the project's licence."""
    if IS_CHECKOUT:
        return (ROOT / "LICENSE").read_text(encoding="utf-8")
    files = metadata.files("cepheid") or []
    (path,) = (file for file in files if file.name == "LICENSE")
    return path.read_text(encoding="utf-8")


if __name__ == "__main__":
    run_tool(main)
