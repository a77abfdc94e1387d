"""The pages of `make docs` that are no file, and our results as a page.

    python docs/pages.py        writes the tables of docs/results.md from the logs of our results

MkDocs calls the functions named ``on_…`` (docs/mkdocs.yml). Pages keep the places of their files in
the repository, so that a link works in both; what a page links to and is no page, such as a
definition or a picture, is copied beside it. The reference is made from the parsers of the
commands, the definitions of the benchmarks, and the rules with the findings that each can tell.
"""

import contextlib
import io
import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from cepheid.compliance.report.rulebook import RuleText, read_rules
from cepheid.rules import definition
from cepheid.rules.host import ROOT, atomic_write
from cepheid.tools.cli import COMMANDS, main

RESULTS = ROOT / "docs/results.md"
BETWEEN = re.compile(r"(?<=<!-- results: begin -->\n).*(?=<!-- results: end -->)", re.DOTALL)
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
    """Lead links to folders to their READMEs; where there is none, their words are left."""
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


# Our results --------------------------------------------------------------------------------------


def write_results(path: Path = RESULTS) -> str:
    """Write the tables of our submissions into the page of our results; return its text."""
    tables = run("summary", str(ROOT / "submissions"), "--format", "markdown")
    text = BETWEEN.sub(lambda _: f"\n{tables}\n", path.read_text(encoding="utf-8"))
    atomic_write(path, text)
    return text


if __name__ == "__main__":
    write_results()
