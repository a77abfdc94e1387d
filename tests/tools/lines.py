"""Command lines in one fresh interpreter, one after the other: it starts once, not for each."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cepheid.rules.host import ROOT

PROGRAM = """
import contextlib, io, json, sys
{first}
from cepheid.tools.cli import console
lines, ended = sys.argv[1:], {{}}
for line in lines:
    sys.argv[1:] = line.split()
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            console()
        except SystemExit as end:
            ended[line] = int(end.code or 0), out.getvalue(), err.getvalue(), "torch" in sys.modules
print(json.dumps(ended))
"""


@dataclass(frozen=True)
class Ended:
    """A command line that has ended, and whether torch was loaded by then."""

    returncode: int
    stdout: str
    stderr: str
    has_torch: bool


def run_lines(lines: Sequence[str], first: str, folder: Path) -> dict[str, Ended]:
    """Run `cepheid` with each of the lines in a folder, after the statements ``first``."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(first=first), *lines],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {line: Ended(*ended) for line, ended in json.loads(done.stdout).items()}
