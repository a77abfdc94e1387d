"""`cepheid new-benchmark`: create a benchmark as a small working example."""

import keyword
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template

import yaml

from cepheid.rules import definition
from cepheid.rules.errors import UserError
from cepheid.rules.host import ROOT, require_checkout
from cepheid.tools.console.arguments import read_command
from cepheid.tools.console.program import (
    EXIT_FINE,
    fill_templates,
    make_new_folder,
    run_tool,
)

TEMPLATES = Path(__file__).parent / "templates" / "benchmark"
DATASET_TEMPLATES = Path(__file__).parent / "templates" / "dataset"
DATASETS = ROOT / "reference" / "data"
NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
TITLE = re.compile(r"[^\"\\:#{}\x00-\x1f]{1,100}")  # YAML and Python hold it as it is
COMMAND = read_command("new-benchmark")


def main(argv: Sequence[str] | None = None) -> int:
    """Write the folder and print the next steps."""
    arguments = COMMAND.parse(argv)
    name, title = arguments.name, arguments.title or arguments.name.replace("_", " ").capitalize()
    if not NAME.fullmatch(name) or keyword.iskeyword(name):
        raise UserError(
            f"{name[:100]!r} cannot be the name of a benchmark: use a lower-case letter, then "
            "letters, digits and '_', at most 40 characters, and no keyword of Python"
        )
    if not TITLE.fullmatch(title):
        raise UserError(f'--title {title[:100]!r}: expected one line without any of " \\ : # {{ }}')
    require_checkout("a new benchmark")
    folder = definition.locate_benchmarks() / name
    words = {"name": name, "title": title}
    template = (TEMPLATES / "benchmark.yaml.template").read_text(encoding="utf-8")
    document = yaml.safe_load(Template(template).substitute(words))
    words["definition_digest"] = definition.parse(document, "mini").digest  # of its evidence
    dataset = DATASETS / name
    if os.path.lexists(folder):
        raise UserError(f"{folder}: already exists; change it, or move it away")
    if arguments.dataset:
        _fill(dataset, DATASET_TEMPLATES, words)
    _fill(folder, TEMPLATES, words)
    names = {"name": name, "folder": os.path.relpath(folder), "dataset": os.path.relpath(dataset)}
    print(COMMAND.texts["next"].format(**names))
    if arguments.dataset:
        print(COMMAND.texts["next_with_dataset"].format(**names))
    return EXIT_FINE


def _fill(folder: Path, templates: Path, words: Mapping[str, str]) -> None:
    """Write what the templates say into a new folder: everything or nothing."""
    with make_new_folder(folder) as made:
        fill_templates(templates, words, made)


if __name__ == "__main__":
    run_tool(main)
