"""The tables in compliance/README.md, each between two marks."""

from pathlib import Path

from cepheid.rules.installation import ROOT

README = ROOT / "compliance" / "README.md"


def table(name: str, file: Path = README) -> str:
    """What stands between the marks of a table."""
    _, made, _ = _parts(name, file)
    return made


def replace_table(name: str, made: str, file: Path = README) -> None:
    """Replace what stands between the marks of a table."""
    before, _, after = _parts(name, file)
    file.write_text(f"{before}{made.strip()}\n{after}", encoding="utf-8")


def _parts(name: str, file: Path) -> tuple[str, str, str]:
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    before, found_begin, rest = file.read_text(encoding="utf-8").partition(begin)
    made, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        raise SystemExit(f"{file}: no lines {begin.strip()} and {end.strip()} to write between")
    return before + begin, made, end + after
