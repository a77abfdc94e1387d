"""Find what a branch changes, for ``cepheid check --changed``."""

import os
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from cepheid.compliance.finding import Finding, escape
from cepheid.compliance.judge.judgement import Judgement
from cepheid.compliance.read import decisions
from cepheid.compliance.read.layout import SUBMISSIONS
from cepheid.rules.errors import UserError

JUDGES = re.compile(r"(cepheid|rules|compliance)/.*|benchmarks/[^/]+/(benchmark\.yaml|rcp\.json)")
"""Files whose change may change the verdict about any submission."""


@dataclass(frozen=True)
class Change:
    """The files that differ from a revision; ``names`` are relative to ``root``, the checkout."""

    root: Path
    names: frozenset[PurePosixPath]

    @property
    def submitters(self) -> frozenset[str]:
        """The submitters in whose folders something differs."""
        inside = (name.parts for name in self.names if name.parts[0] == SUBMISSIONS)
        return frozenset(parts[1] for parts in inside if len(parts) > 2)

    @property
    def present(self) -> list[str]:
        """Those of them whose folders are still there."""
        folder = self.root / SUBMISSIONS
        return [name for name in sorted(self.submitters) if (folder / name).exists()]

    @property
    def beside(self) -> frozenset[PurePosixPath]:
        """The files that differ beside the submitters' folders."""
        return frozenset(
            n for n in self.names if n.parts[:1] == (SUBMISSIONS,) and len(n.parts) < 3
        )

    @property
    def elsewhere(self) -> frozenset[PurePosixPath]:
        """The files that differ outside of ``submissions``, such as rules and definitions."""
        return frozenset(name for name in self.names if name.parts[0] != SUBMISSIONS)

    @property
    def concerns_submissions(self) -> bool:
        """True where a submission differs, or what it is judged by."""
        differs = bool(self.submitters or self.beside)
        return differs or any(JUDGES.fullmatch(str(name)) for name in self.elsewhere)

    def refuse_mixture(self, *, is_organiser: bool) -> None:
        """Raise UserError for a change that nobody can judge, or that touches what is not its own.

        The base branch judges: its rules and its checker would judge a submission otherwise than
        those that come with it. Only an organiser may change several submitters' folders, or what
        lies beside them.
        """
        touched = sorted(self.submitters)
        if (touched or self.beside) and self.elsewhere:
            raise UserError(
                f"this change touches submissions and {_list(self.elsewhere)}: a submission is "
                "judged by the rules, definitions and checker of the base branch; fix: make two "
                "changes, and the one of the submissions second"
            )
        if not is_organiser and (len(touched) > 1 or self.beside):
            others = [*(f"{SUBMISSIONS}/{name}" for name in touched), *map(str, self.beside)]
            raise UserError(
                f"this change touches {_list(others)}: a submitter changes only the files in their "
                "own folder; fix: leave the others as they are (organisers add --organiser)"
            )
        removed = sorted(set(touched) - set(self.present))
        if not is_organiser and removed:
            raise UserError(
                f"this change removes {SUBMISSIONS}/{escape(removed[0])}; fix: put it back and ask "
                "the organisers to withdraw what should not count (rule S8; they add --organiser)"
            )

    def is_untouched(self, folder: Path) -> bool:
        """Return True where nothing differs in a file or folder: it stood on the base branch."""
        return PurePosixPath(os.path.relpath(folder, self.root)) not in self._touched

    @cached_property
    def _touched(self) -> frozenset[PurePosixPath]:
        return self.names | {parent for name in self.names for parent in name.parents}

    def select(self, judgement: Judgement) -> tuple[list[Finding], int]:
        """Return the findings about what differs, and the number of logs that they are about.

        Where only rules, checks or decisions of the organisers differ, these are all.
        """
        submitters = [who for who in judgement.submitters if self._differs(who.who.path)]
        logs = sum(len(result.folder.runs) for who in submitters for result in who.results)
        return [finding for finding in judgement.findings if self._differs(finding.path)], logs

    def _differs(self, path: Path) -> bool:
        if not self.present or PurePosixPath(SUBMISSIONS, decisions.FILE_NAME) in self.names:
            return True
        parts = PurePosixPath(os.path.relpath(path, self.root)).parts
        return len(parts) < 2 or parts[1] in self.submitters | {n.name for n in self.beside}


def find_change(revision: str) -> Change:
    """Find what differs from where the branch left ``revision``, committed or not, tracked or not.

    A file that was renamed counts under both names. Names need not be UTF-8. Raises UserError
    outside a git repository and for an unknown revision.
    """
    if revision.startswith("-"):
        raise UserError(f"--changed {revision}: expected a revision, for example origin/main")
    root = os.fsdecode(_run_git("rev-parse", "--show-toplevel").rstrip(b"\n"))
    form = ("--name-only", "-z", "--no-renames", "--ignore-submodules=none")
    names = _run_git("-C", root, "diff", *form, "--merge-base", revision, "--").split(b"\0")
    names += _run_git("-C", root, "ls-files", "--others", "-z", "--", SUBMISSIONS).split(b"\0")
    return Change(Path(root), frozenset(PurePosixPath(os.fsdecode(name)) for name in names if name))


def _list(names: Iterable[object]) -> str:
    shown = sorted(escape(str(name))[:100] for name in names)
    more = f" and {len(shown) - 3} more" if len(shown) > 3 else ""
    return f"{', '.join(shown[:3])}{more}"


def _run_git(*arguments: str) -> bytes:
    try:
        return subprocess.run(["git", *arguments], capture_output=True, check=True).stdout
    except FileNotFoundError as error:
        raise UserError(
            "--changed needs git, which is not installed; give the folders instead"
        ) from error
    except subprocess.CalledProcessError as error:
        why = escape(os.fsdecode(error.stderr).partition("\n")[0])[:200]
        raise UserError(
            f"--changed: git failed: {why}; in CI, fetch the whole history "
            "(actions/checkout with fetch-depth: 0)"
        ) from error
