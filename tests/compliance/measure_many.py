"""Measure the checker with many results, honest and copied.

``python -m tests.compliance.measure_many 10000`` writes that many logs of one benchmark and judges
them together in all processors. The seconds, the memory and the copies that were found are printed.
"""

import argparse
import json
import random
import resource
import tempfile
import time
from pathlib import Path

from cepheid.compliance.judge.judgement import judge
from cepheid.compliance.judge.unit import use_processes
from cepheid.compliance.read import package
from cepheid.rules import definition, rounds
from cepheid.rules.host import usable_processors
from tests.compliance.builder import SYSTEM, Record, line_of, run_records
from tests.compliance.many import vary

MINI = definition.load("galaxy_shape", "mini")
BLOCKS = 8
COPIED_EVERY = 50  # results


def write_results(root: Path, logs: int, noise: random.Random) -> int:
    """Write honest results and, every fiftieth, a copy with other digits; return the copies."""
    made, before, copied = logs // MINI.runs.required, list[list[Record]](), 0
    for number in range(made):
        system = {**SYSTEM, "submitter": f"submitter{number // 100}", "system": f"box{number}"}
        is_copy = number % COPIED_EVERY == COPIED_EVERY - 1
        runs = []
        for index in range(MINI.runs.required):
            records = run_records(MINI, index, blocks=BLOCKS, system=system)
            vary(MINI, records, noise, of=before[index] if is_copy else None)
            runs.append(records)
        before, copied = runs, copied + is_copy * MINI.runs.required
        home = root / system["submitter"]
        folder = home / "results" / system["system"] / "galaxy_shape-mini-closed"
        folder.mkdir(parents=True)
        for index, records in enumerate(runs):
            lines = "".join(line_of(record) + "\n" for record in records)
            (folder / f"result_{index}.txt").write_text(lines)
        path = home / "systems" / f"{system['system']}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(system))
    return copied


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("logs", type=int, nargs="?", default=10_000)
    logs = parser.parse_args().logs
    with tempfile.TemporaryDirectory() as folder:
        copied = write_results(Path(folder), logs, random.Random(1))
        started = time.perf_counter()
        each = use_processes(usable_processors())
        judged = judge([package.read(Path(folder))], rounds.load(), each)
        seconds = time.perf_counter() - started
    found = [finding for finding in judged.findings if finding.code == "T19.recycled"]
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + usable_processors() * children
    print(f"{judged.logs:,} logs in {seconds:.1f} s, at most {memory / 1024:,.0f} MiB")
    print(f"{copied:,} copied runs, {len(found):,} found")


if __name__ == "__main__":
    main()
