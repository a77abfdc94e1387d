"""The names of submitters and systems (rule S1): which characters, and which words they are not.

A folder with the name of a submitter lies beside folders and files that tools read. A submitter
called ``systems`` would make a folder of submissions look like the folder of one submitter.
"""

import re

from cepheid.rules.errors import UserError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""The characters of the name of a submitter or a system."""

RESERVED = frozenset(
    {
        "submissions", "systems", "results", "benchmarks", "checkpoints", "leaderboard", "docs",
        "manifest", "waivers", "license", "licence", "readme",
    }
)  # fmt: skip
"""Names of folders and files beside which a submitter or a system lies, without regard to case."""

DEVICE_NAME = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
"""Names of files that Windows does not have."""

_FILE_NAME = re.compile(
    r".*\.(txt|json|csv|md|yaml|yml|html|png|partial)|(result|interrupted|power|report)_[0-9].*",
    re.IGNORECASE | re.DOTALL,
)


def explain_name(name: str) -> str:
    """Return why a submitter or a system cannot have a name, or an empty text if it can."""
    if not NAME.fullmatch(name):
        return (
            "a name consists of letters, digits, '.', '_' and '-', at most 64, a letter or digit"
            " first"
        )
    if name.casefold() in RESERVED:
        return "this name is reserved, because tools read folders of this name"
    if DEVICE_NAME.fullmatch(name) or name.endswith("."):
        return "Windows cannot have a folder of this name"
    if _FILE_NAME.fullmatch(name):
        return "this is the name of a file that tools read"
    return ""


def refuse_name(name: str, of: str) -> None:
    """Raise UserError if a submitter or a system cannot have a name; ``of`` says whose it is."""
    why = explain_name(name)
    if why:
        raise UserError(
            f"{name[:100]!r} cannot be the name of {of}: {why}; choose another name (rule S1)"
        )
