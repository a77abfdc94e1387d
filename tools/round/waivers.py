"""`cepheid round move-waivers`: bring waivers of an earlier version to the organisers' file.

What stands in decisions.yaml stays as it is, with its comments. The file of waivers is removed.
"""

import argparse
import json
import os
import re
from pathlib import Path

from cepheid.compliance.finding import escape
from cepheid.compliance.read import decisions
from cepheid.compliance.read.contents import OLD_WAIVERS
from cepheid.compliance.read.decisions import Waiver
from cepheid.compliance.read.layout import SUBMISSIONS
from cepheid.rules.errors import UserError
from cepheid.tools.console.program import EXIT_FINE, replace_file

_BEGIN = re.compile(r"^waivers:[ \t]*(#.*)?$", re.MULTILINE)


def move(arguments: argparse.Namespace) -> int:
    """Move the waivers of one submitter. Raises UserError for one that cannot be read."""
    folder = Path(os.path.abspath(arguments.path))
    if folder.parent.name != SUBMISSIONS:
        raise UserError(f"{folder}: not the folder of a submitter in {SUBMISSIONS}/")
    old, target = folder / OLD_WAIVERS, folder.parent / decisions.FILE_NAME
    if not old.is_file() or old.is_symlink():
        raise UserError(f"{old}: no such file; there is nothing to move")
    moved = decisions.read(old)
    _refuse_problems(moved)
    entries = "".join(_write(waiver, folder.name) for waiver in moved.list_all(Waiver))
    replace_file(target, _insert(target, entries))
    _refuse_problems(decisions.read(target))
    old.unlink()
    count = len(moved.list_all(Waiver))
    print(f"{target}: {count} waiver{'' if count == 1 else 's'} of {folder.name} moved here")
    return EXIT_FINE


def _refuse_problems(found: decisions.Decisions) -> None:
    for problem in found.problems:
        place = f"{found.path}:{problem.line}" if problem.line else str(found.path)
        raise UserError(f"{place}: {escape(problem.message)[:300]}; fix: correct it, then again")


def _write(waiver: Waiver, submitter: str) -> str:
    fields = {
        "rule": waiver.rule,
        "path": f"{submitter}/{waiver.path}",
        "reason": waiver.reason,
        "who": waiver.who,
    }
    lines = [f"{name}: {json.dumps(text, ensure_ascii=False)}" for name, text in fields.items()]
    return "  - " + "\n    ".join([*lines, f"until: {waiver.until}"]) + "\n"


def _insert(target: Path, entries: str) -> str:
    """Return the text of the organisers' file with more waivers in it, before the others."""
    if not target.exists():
        return f"waivers:\n{entries}"
    there = decisions.read(target)
    _refuse_problems(there)
    text = target.read_text(encoding="utf-8").rstrip("\n") + "\n"
    if "waivers" not in there.entries:
        return f"{text}waivers:\n{entries}"
    begin = _BEGIN.search(text)
    if begin is None:
        raise UserError(f"{target}: write each waiver on lines of its own, below `waivers:`")
    return f"{text[: begin.end() + 1]}{entries}{text[begin.end() + 1 :]}"
