"""Ask mlcommons' checkers what they say of logs, and write it into compliance/README.md.

The peer is the installed ``mlperf_logging`` (extra: test). It takes minutes and executes code, so
it is asked by hand, in processes of its own.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cepheid.compliance.finding import Finding, has_error
from cepheid.compliance.judge.judgement import judge
from cepheid.compliance.read import package
from cepheid.rules import rounds
from cepheid.rules.errors import UserError
from cepheid.rules.host import ROOT
from cepheid.tools.console.program import EXIT_FINE, run_tool
from cepheid.tools.peer import changed


@dataclass(frozen=True)
class Compared:
    """What both checkers say about one log; ``peer_says`` is the last line of a traceback."""

    round: str
    log: Path
    peer: str
    peer_says: str
    findings: tuple[Finding, ...]

    @property
    def ours(self) -> str:
        """Our verdict in the peer's words."""
        return "FAILED" if has_error(self.findings) else "SUCCESS"

    @property
    def breaches(self) -> str:
        """Our errors in a few words: ``M1 is missing: epoch_start, epoch_stop``."""
        keys_of: dict[str, set[str]] = {}
        for finding in self.findings:
            if finding.is_error:
                said = re.sub(r" \(in .*|: .*", "", finding.message)
                key, _, what = said.partition(" ")
                known = "_" in key  # else the message does not begin with the key of a record
                keys = keys_of.setdefault(f"{finding.rule} {what if known else said}", set())
                keys |= {key} if known else set()
        said_of = (
            f"{what}: {', '.join(sorted(keys))}".rstrip(": ") for what, keys in keys_of.items()
        )
        return "; ".join(sorted(said_of))


def make_tables(logs: Path) -> str:
    """Make all tables in Markdown; ``logs`` holds a folder for each round."""
    compared = [pair for name in rounds.names() for pair in compare(logs, name)]
    if not compared:
        raise UserError(f"{logs}: no folder of a round here, such as mlperf-training-4.0")
    return "\n".join(write_markdown(compared))


def compare(logs: Path, round_name: str) -> Iterator[Compared]:
    """Compare both verdicts of each log of a round, in the order of the folders."""
    judged_in, folder = rounds.load(round_name), logs / round_name
    if not judged_in.is_mlperf or not folder.is_dir():
        return
    for who in package.read(folder, judged_in.layout).submitters:
        for path in (path for result in who.results for path in result.runs):
            alone = judge([package.read(path, judged_in.layout)], judged_in)
            peer, says = ask_peer(path, round_name)
            yield Compared(round_name, path.relative_to(folder), peer, says, alone.findings)


def ask_peer(log: Path, round_name: str) -> tuple[str, str]:
    """Return SUCCESS, FAILED, or CRASH with the last line of its traceback."""
    _, usage, version = round_name.split("-")
    call = [sys.executable, "-m", "mlperf_logging.compliance_checker", "--log_output", "/dev/null"]
    call += ["--usage", usage, "--ruleset", f"{version}.0", str(log)]
    done = subprocess.run(call, capture_output=True, text=True, errors="replace", check=False)
    said = (done.stdout + done.stderr).strip().splitlines()
    if "Traceback (most recent call last):" in said:
        return "CRASH", re.sub(r"'/\S*/([^/]+/[^/]+)'", r"`\1`", said[-1])
    for verdict in ("SUCCESS", "FAILED"):
        if any(line.endswith(verdict) for line in said):
            return verdict, ""
    raise UserError("mlcommons' checker gave no verdict; is mlperf-logging installed?")


def write_markdown(compared: Sequence[Compared]) -> Iterator[str]:
    """Write the section: counts, disagreements, and what is wrong with what both refuse."""
    yield "| round | logs | both accept | both refuse | disagree |"
    yield "|---|---|---|---|---|"
    for name in dict.fromkeys(pair.round for pair in compared):
        pairs = [pair for pair in compared if pair.round == name]
        accept = sum(pair.ours == pair.peer == "SUCCESS" for pair in pairs)
        refuse = sum(pair.ours == pair.peer == "FAILED" for pair in pairs)
        apart = len(pairs) - accept - refuse
        yield f"| `{name}` | {len(pairs)} | {accept} | {refuse} | {apart} |"
    yield from ["", "Every disagreement:", ""]
    yield "| logs | mlcommons | Cepheid | mlcommons says | Cepheid says |"
    yield "|---|---|---|---|---|"
    apart_pairs = [pair for pair in compared if pair.ours != pair.peer]
    for logs, pair in group_alike(apart_pairs):
        yield f"| {logs} | {pair.peer} | {pair.ours} | {pair.peer_says} | {pair.breaches} |"
    yield from ["", "Why logs that both refuse are refused, in our words:", ""]
    yield "| logs | reason |"
    yield "|---|---|"
    for logs, pair in group_alike(
        [pair for pair in compared if pair.ours == pair.peer == "FAILED"]
    ):
        yield f"| {logs} | {pair.breaches} |"


def group_alike(pairs: Sequence[Compared]) -> Iterator[tuple[str, Compared]]:
    """Group the logs of a result of which the same is said, each with one of them."""
    groups: dict[tuple[str, ...], list[Compared]] = {}
    for pair in pairs:
        where = f"{pair.round}/{pair.log.parent}"
        groups.setdefault((where, pair.peer, pair.peer_says, pair.breaches), []).append(pair)
    for (where, *_), same in groups.items():
        yield f"`{where}`: {', '.join(f'`{pair.log.name}`' for pair in same)}", same[0]


README = ROOT / "compliance" / "README.md"
PUBLISHED_LOGS = Path(
    os.environ.get("CEPHEID_PUBLISHED_LOGS", ROOT.parent / "shared" / "published_logs")
)
TABLES: Mapping[str, Callable[[Path], str]] = {
    "changed": changed.make_table,
    "published": make_tables,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table, or write it into compliance/README.md."""
    parser = argparse.ArgumentParser(prog="python -m cepheid.tools.peer", description=__doc__)
    parser.add_argument(
        "table",
        choices=tuple(TABLES),
        help="changed: changes to a published log; published: every published log as it is",
    )
    parser.add_argument("--write", action="store_true", help="write into compliance/README.md")
    arguments = parser.parse_args(argv)
    text = TABLES[arguments.table](PUBLISHED_LOGS)
    if arguments.write:
        replace_table(arguments.table, text)
    else:
        print(text)
    return EXIT_FINE


def read_table(name: str, file: Path = README) -> str:
    """Return what stands between the marks of a table."""
    return _split(name, file)[1]


def replace_table(name: str, text: str, file: Path = README) -> None:
    """Replace what stands between the marks of a table."""
    before, _, after = _split(name, file)
    file.write_text(f"{before}{text.strip()}\n{after}", encoding="utf-8")


def _split(name: str, file: Path) -> tuple[str, str, str]:
    begin, end = (f"<!-- {name} logs: {where} -->\n" for where in ("begin", "end"))
    before, found_begin, rest = file.read_text(encoding="utf-8").partition(begin)
    table, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        raise UserError(f"{file}: no lines {begin.strip()} and {end.strip()} to write between")
    return before + begin, table, end + after


if __name__ == "__main__":
    run_tool(main)
