"""What docs/measurements and docs/claims say: tables are generated, commands exist."""

import json
import re
import subprocess
from pathlib import Path

from cepheid.measure.studies.epochs import load_comparison
from cepheid.measure.studies.speed.speed import ON_A_DATASET, find_measurements
from cepheid.rules import definition
from cepheid.rules.host import ROOT
from cepheid.tools.measure.__main__ import MEASUREMENTS
from tests.checkout import load_script

# docs/measurements: the page is what its files say ------------------------------------------------


def test_the_page_of_measurements_is_generated_and_says_whether_noise_has_a_meaning() -> None:
    """Run docs/measurements/tables.py after a file has changed."""
    tables = load_script("docs/measurements/tables.py")
    assert tables.write_page() == tables.PAGE.read_text(encoding="utf-8")
    page = (ROOT / "docs/measurements/README.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `measure speed")]
    trained = [definition.load(name, "mini") for name in definition.names()]
    for name in {key for d in trained if d.kind == "train" for key in find_measurements(d)}:
        (row,) = (each for each in rows if re.search(rf"(--|--only |`){name}`", each))
        assert ("| no: " in row) == (name in ON_A_DATASET), row


def test_each_kind_of_measurement_has_a_table(tmp_path: Path) -> None:
    machine = {"accelerator": None, "processor": "a CPU"}
    made = {"machine": machine, "commit": "", "code_digest": "c" * 64, "load_before": 0.1}
    waits = {"bubble": [0.2, 0.25, 0.3], "formula_of_stages": 0.2}
    arms = {"whole": {"seconds": [0.2] * 3}, "parts": {"seconds": [0.1] * 3, **waits}}
    shared = {"pixels": 64, "way": "parts", "seconds": [0.1], "times_as_fast": 2.0}
    point = {"ranks": 2, "samples_per_second": {"median": 64.0}, "input": "real",
             "efficiency": {"real": {"median": 0.8}}}  # fmt: skip
    update = {"name": "fresh", "baseline_milliseconds": 10, "milliseconds": 30, "ratio": 3.0,
              "ratio_quartiles": [2, 4], "memory": [2**20, 2**21],
              "counts": {"refreshes": 1, "possible_refreshes": 20},
              "sent_bytes": {"factors, within nodes": 2**20,
                             "factors, between nodes": 2**19}}  # fmt: skip
    files = {
        "profile": {**made, "command": "cepheid measure …", "profile": {
            "seconds": [0.1, 0.2, 0.3], "shares": {"forward": 0.25, "backward": 0.5, "other": 0.25},
            "kernel_share": 1.0, "kernels": {"on": "cpu"}, "peak_bytes": 2**20,
            "global_batch_size": 8}},
        "update": {**made, "update": arms},
        "partitions": {**made, "partitions": {"64 pixels, parts": shared}},
        "costs": {**made, "updates": [update]},
        "networks": {**made, "compared": {"ResNet-18": {"updates": [update]}}},
        "ladder": {**made, "global_batch_size": 8, "rungs": [
            {"name": "float16", "timing": {"seconds": [0.2]}, "speedup_in_all": [2, 1, 3],
             "phases_ms": {"forward": 1, "backward": 2, "update": 3}, "memory": 2**20,
             "kernel_seconds": 0.05}]},
        "disk": {**made, "storage": "nfs4 (server:/)", "readers": 2, "formats": [
            {"name": "LMDB", "cold_in_order": [90], "cold_shuffled": [], "cold_shared": [7]}]},
        "scaling-x/scaling": {"commit": "abc", "table": [point], "points": [{"load_before": 0}]},
        "scaling-x/2": {"ranks": 2},  # a point by itself
    }  # fmt: skip
    for name, content in files.items():
        path = tmp_path / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
    page = load_script("docs/measurements/tables.py").write_page(tmp_path)
    for row in (
        "| profile | 8 | a CPU | 200.0 | 0.0% | 25.0% | 50.0% | 0.0% | 0.0% | other 25.0% |",
        "| update | parts | 100.0 | 2.00 |  | 25% (20%) |  | cccccccccccc | 0.1 |",
        "| partitions | 64 | parts | 100 | 2.00 |",
        "| costs | a CPU | fresh | 10.0 | 30.0 | 3.00 (2.00 to 4.00) | 5% | 1 | 2 | 1.50 | 0.50 |",
        "| networks | a CPU | ResNet-18: fresh |",
        "| ladder | a CPU | float16 | 200.0 | 40 | 2.00 | 1.0 | 2.0 | 3.0 | 150.0 | 1 |",
        "| disk | nfs4 (server:/) | 2 | LMDB | 90 |  | 7 |",
        "| scaling-x | 2 | 64 | 0.80 | abc | 0.0 |",
        "- profile: `cepheid measure …`",
    ):
        assert row in page
    assert page.count("## ") == 8


def test_the_script_of_measurements_has_commands_that_exist() -> None:
    """Options are read, nothing is measured."""
    script = (ROOT / "docs/measurements/record.sh").read_text(encoding="utf-8")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    for name, only in re.findall(r"(?m)^ *keep .* speed (\w+) --only (\w+)", script):
        assert only in find_measurements(definition.load(name, "mini"))


# docs/claims: each claim has a verdict, each command can be run -----------------------------------

VERDICTS = r"\*\*(confirmed|in part|not confirmed)\*\*.*|not testable here"


def list_claims(pages: str = "docs/claims/*.md") -> list[list[str]]:
    lines = [line for page in ROOT.glob(pages) for line in page.read_text("utf-8").splitlines()]
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    return [row for row in rows if len(row) == 4 and row[0] not in ("claim", "---")]


def test_claims_have_verdicts_that_are_counted_and_commands_that_exist() -> None:
    claims = list_claims()
    assert len(claims) > 50
    for claim, verdict, record, command in claims:
        assert re.fullmatch(VERDICTS, verdict), claim
        if verdict.startswith("**"):
            assert command, claim
            assert "](" in record or command == "the same", claim
    words, *rows = re.findall(r"(?m)^\| (.*) \|$", (ROOT / "docs/claims.md").read_text("utf-8"))
    for row in rows:
        title, *told = row.split(" | ")
        (page,) = re.findall(r"\((claims/\w+\.md)\)", title)
        found = [re.findall("[a-z ]+", row[1])[0] for row in list_claims(f"docs/{page}")]
        assert told == [str(found.count(word)) for word in words.split(" | ")[1:]], page
    text = " ".join(command for *_, command in list_claims())
    for study, name, rest in re.findall(r"measure (\w+) (\w+)([^`]*)`", text):
        assert study in MEASUREMENTS
        assert name in definition.names()
        for only in re.findall(r"--only (\w+)", rest):
            assert only in find_measurements(definition.load(name, "mini"))
        for compared in re.findall(r"--compare (\w+)", rest if study == "epochs" else ""):
            assert load_comparison(name, "mini", compared)
