"""What documents and templates hand out works; the documentation site has no broken link."""

import configparser
import json
import os
import random
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cepheid.compliance.read import powerlog
from cepheid.measure.engine.own_process import find_free_port
from cepheid.reference.data.layouts import declared
from cepheid.rules import definition
from cepheid.rules.host import ROOT
from cepheid.tools import check_compliance
from cepheid.tools.run import costs, ending
from tests.checkout import load_script, run_program
from tests.compliance.builder import Record, run_records, write_log, write_result
from tests.compliance.judging import judge_folder

# docs/cluster: a list of hosts, with a made-up ssh that stays on this machine ---------------------


HOSTS = ROOT / "docs" / "cluster" / "hosts.sh"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """With an ssh that runs what it is given right here, in its own place: it can be ended."""
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nshift\nexec sh -c "exec $(echo "$*" | sed "s/^cd .* && //")"\n')
    ssh.chmod(0o755)
    return {**os.environ, "SSH": str(ssh), "MASTER_PORT": str(find_free_port()),
            "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}  # fmt: skip


@pytest.mark.parametrize("name", ["hosts.sh", "slurm.sh", "pbs.sh"])
def test_the_shell_reads_them(name: str) -> None:
    subprocess.run(["bash", "-n", str(HOSTS.with_name(name))], check=True)


def test_pbs_gives_every_node_as_many_ranks_and_one_place_to_meet(tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text("beta\nbeta\nalpha\nalpha\n")  # the first need not sort first
    mpirun = tmp_path / "mpirun"
    mpirun.write_text('#!/bin/sh\npwd\necho "$MASTER_ADDR $MASTER_PORT"\nprintf "%s\\n" "$@"\n')
    mpirun.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "PBS_NODEFILE": str(tmp_path / "nodes"),
        "PBS_O_WORKDIR": str(tmp_path), "PBS_JOBID": "21234[5].server", "RUN": "run.sh --runs +1",
    }  # fmt: skip
    line = ["bash", str(HOSTS.with_name("pbs.sh"))]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=True)
    where, meeting, *arguments = done.stdout.splitlines()
    assert where == str(tmp_path)
    assert meeting == "beta 11234"
    assert arguments == [
        "-np", "4", "--map-by", "ppr:2:node", "--bind-to", "numa",
        "-x", "MASTER_ADDR", "-x", "MASTER_PORT", "run.sh", "--runs", "+1",
    ]  # fmt: skip


def test_torchrun_has_the_binding_that_the_page_names() -> None:
    pytest.importorskip("torch", reason="torchrun comes with the extra torch")
    from torch.distributed.run import get_args_parser

    (option,) = (
        each for each in get_args_parser()._actions if "--numa-binding" in each.option_strings
    )
    page = (ROOT / "docs" / "scaling" / "launchers.md").read_text()
    (sentence,) = (line for line in page.splitlines() if "--numa-binding" in line)
    assert all(f"{mode}`" in sentence for mode in option.choices or ())


def test_two_hosts_describe_themselves_together(
    environment: dict[str, str], tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="several ranks need the extra torch")
    output = tmp_path / "with space" / "pair.json"
    command = [sys.executable, "-m", "cepheid.tools.describe_system", "--output", str(output)]
    line = ["bash", str(HOSTS), "127.0.0.1 localhost", "1", *command]
    done = run_program(line, cwd=ROOT, env=environment, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(output.read_text())["nodes"] == 2


def test_a_rank_that_fails_ends_the_others(environment: dict[str, str]) -> None:
    code = "3 + (0 in os.sched_getaffinity(0))"  # the first processor is the first rank's, if bound
    program = f"import os, time; os.environ['RANK'] == '1' and os._exit({code}); time.sleep(60)"
    environment["BIND"] = "cores" if 1 < len(os.sched_getaffinity(0)) == os.cpu_count() else "none"
    started = time.monotonic()
    line = ["bash", str(HOSTS), "127.0.0.1 localhost", "2", sys.executable, "-c", program]
    done = run_program(line, cwd=ROOT, env=environment)
    assert done.returncode == 3 + (environment["BIND"] == "none"), done.stderr
    assert time.monotonic() - started < 30


# docs/power.md: readings of a meter become a power log --------------------------------------------


GALAXY_SHAPE = definition.load("galaxy_shape", "mini")


def slew(records: list[Record]) -> list[Record]:
    """The wall clock gains half a second in a thousand: a clock that is being slewed."""
    start = records[0]["time_ms"]
    for record in records:
        record["time_ms"] += int((record["time_ms"] - start) * 5e-4)
    return records


def test_the_script_converts_the_readings_of_a_meter(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "power.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "convert.py").write_text(script)
    folder = write_result(tmp_path / "acme", GALAXY_SHAPE, blocks=lambda index: 7)
    records = slew(run_records(GALAXY_SHAPE, 0, blocks=7))
    log = write_log(folder / "result_0.txt", records)
    walls = range(records[0]["time_ms"] - 100_000, records[-1]["time_ms"] + 100_000, 500)
    draw = random.Random(0).randrange
    rows = [f"{wall / 1000},{300 + draw(7)},{5 + draw(3)}" for wall in walls]
    (tmp_path / "meter.csv").write_text("\n".join(["seconds,plug0,plug1", *rows]) + "\n")
    line = [sys.executable, "convert.py", "meter.csv", str(log), "network switches"]
    done = run_program(line, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (folder / "power_0.csv").write_text(done.stdout)
    found = judge_folder(tmp_path / "acme").findings
    about_power = [finding.code for finding in found if finding.rule == "T23"]
    assert about_power == ["T23.missing"]  # of the other runs
    read = powerlog.read(folder / "power_0.csv")
    assert read.not_measured == "network switches"
    marks = {record["key"]: record["metadata"]["monotonic_ms"] for record in records}
    seconds = (marks["run_stop"] - marks["run_start"]) / 1000
    joules = read.energy_joules(marks["run_start"], marks["run_stop"])
    assert joules == pytest.approx(309 * seconds, rel=0.01)


def test_the_example_of_several_nodes_is_a_power_log(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "power.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^(# not measured: node.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "power_0.csv").write_text(example)
    assert not powerlog.read(tmp_path / "power_0.csv").problems
    assert json.dumps(powerlog.read(tmp_path / "power_0.csv").not_measured).startswith('"node 3')


# The Containerfile, read without building: a build takes minutes and a registry -------------------


SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")


def read_instructions(file: str = "Containerfile") -> list[tuple[str, str]]:
    """Return instruction and arguments of each line, continued lines in one."""
    text = (ROOT / file).read_text(encoding="utf-8")
    text = re.sub(r"(?m)^\s*#.*\n", "", text).replace("\\\n", " ")
    return [
        (line.split(maxsplit=1)[0], line.split(maxsplit=1)[1])
        for line in text.splitlines()
        if line.strip()
    ]


def find(instruction: str) -> list[str]:
    return [rest for name, rest in read_instructions() if name == instruction]


def list_copied() -> set[str]:
    return {source for rest in find("COPY") for source in shlex.split(rest)[:-1]}


def test_the_image_copies_what_there_is_has_a_new_python_and_does_not_run_as_root() -> None:
    copied = list_copied()
    assert [name for name in copied if not (ROOT / name).exists()] == []
    rooms = {path.name for path in (ROOT / "cepheid").iterdir() if path.is_symlink()}
    named = {SETUP["metadata"]["license_files"], SETUP["metadata"]["long_description"].split()[-1]}
    assert rooms | named | {"cepheid", "setup.cfg", "pyproject.toml"} <= copied
    lines = (ROOT / ".containerignore").read_text(encoding="utf-8").splitlines()
    assert {line[1:] for line in lines if line.startswith("!")} == list_copied()
    (base,) = (rest.partition("=")[2] for rest in find("ARG") if rest.startswith("BASE="))
    version = tuple(map(int, re.findall(r"python:(\d+)\.(\d+)", base)[0]))
    least = tuple(map(int, re.findall(r"(\d+)\.(\d+)", SETUP["options"]["python_requires"])[0]))
    assert version >= least
    instructions = read_instructions()
    users = [rest for name, rest in instructions if name == "USER"]
    assert users == ["cepheid"]
    after = instructions[instructions.index(("USER", "cepheid")) :]
    assert [name for name, _ in after if name in ("RUN", "COPY", "ADD")] == []
    assert 'ENTRYPOINT ["cepheid"]' in (ROOT / "Containerfile").read_text(encoding="utf-8")


def test_it_installs_extras_of_setup_cfg_for_all_builds_as_the_makefile_does() -> None:
    extras = set(SETUP["options.extras_require"])
    (install,) = (rest for rest in find("RUN") if "pip" in rest)
    arguments = dict(rest.split("=", 1) for rest in find("ARG") if "=" in rest)
    groups = re.findall(r'"\.\[(.*?)\]"', install)
    assert len(groups) == 4
    for group in groups:
        wanted = group.replace("$EXTRAS", arguments["EXTRAS"]).split(",")
        assert set(wanted) <= extras
        assert "torch" in wanted
    assert "--constraint constraints.txt" in install
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (editable,) = re.findall(r"(?m)^EDITABLE := (.*)$", makefile)
    assert editable in install
    for build in ("cpu", "cuda", "rocm", "xpu"):
        assert re.search(rf"\b{build}\) set -- ", install)


def test_the_image_of_the_checker_and_a_hook_run_the_checker_alone() -> None:
    ours, other = read_instructions(), read_instructions("Containerfile.check")
    assert [rest for rest in other if rest[0] == "COPY"] == [
        each for each in ours if each[0] == "COPY"
    ]
    (install,) = (rest for name, rest in other if name == "RUN")
    assert "--editable ." in install
    assert "[" not in install
    assert ("USER", "cepheid") in other
    assert other[-2] == ("ENTRYPOINT", '["cepheid", "check"]')
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert (hook["entry"], hook["language"]) == ("cepheid check", "python")
    assert hook["pass_filenames"] is False
    assert re.match(hook["files"], "submissions/acme/systems/box.json")
    given = check_compliance.COMMAND.make_parser().parse_args(hook["args"])
    assert given.paths == [Path("submissions")]


def test_templates_name_nobody() -> None:
    """A line of CODEOWNERS with an owner that does not exist lets nobody in, or anybody."""
    lines = (ROOT / ".github/CODEOWNERS").read_text().splitlines()
    assert all(line.startswith("#") for line in lines)
    rules = [line.split()[1] for line in lines if re.search(r"  @\w+$", line)]
    missing = [rule for rule in rules if not any(ROOT.glob(rule.strip("/")))]
    assert missing == ["/submissions/decisions.yaml"]  # which organisers begin
    for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.md"):
        assert yaml.safe_load(path.read_text().split("---")[1]).keys() == {"name", "about"}


# The documentation site ---------------------------------------------------------------------------


def test_the_site_builds_without_a_broken_link(tmp_path: Path) -> None:
    """MkDocs is strict, and every page of a command, a rule and a benchmark's settings is there."""
    pytest.importorskip("mkdocs", reason="the documentation site needs the extra docs")
    command = ["mkdocs", "build", "--quiet", "--config-file", "docs/mkdocs.yml", "--site-dir"]
    own = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = run_program([sys.executable, "-m", *command, tmp_path], cwd=ROOT, env=own)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    page = (tmp_path / "reference/rules/T8.html").read_text(encoding="utf-8")
    assert "T8.late" in page
    assert "T21" in (tmp_path / "reference/commands/check.html").read_text(encoding="utf-8")
    recorded = (tmp_path / "benchmarks/kfac/index.html").read_text(encoding="utf-8")
    for words in ("curvature ignored", "least plausible", "Gauss-Newton", "2x-amd-epyc"):
        assert words in recorded, words
    loaded = re.findall(r'(?:src|href)="(https?:[^"]+)', page)
    assert not [link for link in loaded if "mkdocs-material" not in link], "no other server"


def test_tables_between_marks_have_what_logs_and_records_say(tmp_path: Path) -> None:
    pytest.importorskip("scipy", reason="scores need the extra score")
    pages = load_script("docs/pages.py")
    copy, tables = tmp_path / "page.md", 0
    for page in pages.WRITTEN:
        copy.write_text(page.read_text(encoding="utf-8"), encoding="utf-8")
        text = pages.write_tables(copy)
        assert text == page.read_text(encoding="utf-8"), "write it anew: python docs/pages.py"
        tables += len(pages.BETWEEN.findall(text))
    assert tables > 7


ROOMS = ("benchmarks", "compliance", "docs", "leaderboard", "reference", "rules", "second_order")
BOOKS = {"rules/training.md", "rules/submission.md", "rules/from_scratch.md"}
MADE = re.compile(r"(?s)<!-- .*?: begin -->.*?<!-- .*?: end -->")  # tables that commands write
CODE = re.compile(r"(?ms)^ *```.*?^ *```$|^    .*?$")


def list_pages() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each page that people write, without lists of changes."""
    found = [*ROOT.glob("*.md"), *(page for room in ROOMS for page in (ROOT / room).rglob("*.md"))]
    for page in (*found, ROOT / "submissions/README.md"):
        if page.name not in ("CHANGELOG.md", "CHANGES.md", "records.md"):
            yield page.relative_to(ROOT).as_posix(), MADE.sub("", page.read_text(encoding="utf-8"))


def test_a_page_is_read_in_minutes_and_the_documents_are_no_book() -> None:
    long = {page: words for page, text in list_pages() if (words := len(text.split())) > 1_200}
    assert long.keys() <= BOOKS, f"split or shorten: {long}"
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 600
    assert sum(len(text.split()) for _, text in list_pages()) <= 53_000


def test_what_a_page_links_to_is_there() -> None:
    """MkDocs sees no page that is not on the site, and no link that leaves its folder."""
    pages = load_script("docs/pages.py")
    for page, text in list_pages():
        linked = set(pages.list_linked(CODE.sub("", text), page))
        assert not [place for place in linked if not (ROOT / place).exists()], page


def test_no_line_of_prose_is_long() -> None:
    """Tables and commands may be, and what a link leads to is not seen."""
    for page, text in list_pages():
        prose = re.sub(r"\]\([^)]*\)", "", CODE.sub("", text))
        long = [line for line in prose.split("\n") if len(line) > 120 and line[0] not in "|<"]
        assert not long, f"{page}: {long[0]}"


def test_the_page_of_data_says_what_the_plan_asks_for() -> None:
    page = (ROOT / "docs/your-data.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"(?m)^\| ([\w-]+) \| .* \| ([\d.]+ \+ [\d.]+) \|", page))
    costly = {source: gb for (_, source), gb in costs.DISK_GB.items() if gb[0]}
    assert told == {source: f"{gb[0]:g} + {gb[1]:g}" for source, gb in costly.items()}
    assert set(declared.PARTS) == costly.keys()
    assert all(source in page.split("## The layouts")[1] for source in costly)


@pytest.mark.parametrize("name", definition.names())
def test_the_page_of_a_benchmark_is_short_and_leads_to_its_records(name: str) -> None:
    folder = definition.BENCHMARKS / name
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 900, "what is recorded is generated on the site"
    records = text.partition("\n## Records\n")[2]
    recorded = {path.name for path in folder.glob("*.json")} - {"fingerprints.json"}
    assert {each for each in recorded if f"]({each})" not in text} == set()
    assert f"cepheid measure targets {name}" in records


@pytest.mark.parametrize("name", definition.names())
def test_a_page_says_what_its_data_cost_and_the_readme_what_a_run_costs(name: str) -> None:
    mini, full = definition.load(name, "mini"), definition.load(name, "full")
    page = (ROOT / f"benchmarks/{name}/README.md").read_text(encoding="utf-8")
    (getting,) = re.findall(r"(?ms)^\*\*Getting the data\.\*\* (.+?)\n\n", page)
    for words in ("fetched|image-net", r"`--data`", r"\d (?:GB|MB)", r"minute|hour|seconds| s\b"):
        assert re.search(words, getting), words
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"(?m)^\| \[{name}\]\(.*", readme)
    memory, devices = costs.find_memory(mini), costs.describe_devices(full)
    assert [cell.strip() for cell in row.split("|")][3:7] == [
        costs.describe_minutes(costs.find_reference(mini)),
        f"{memory:.1f}",
        costs.describe_disk(full),
        "yes" if devices == "GPUs" else "no",
    ]


def test_the_stopwatch_counts_what_there_is() -> None:
    page = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    told = [int(number) for number in re.findall(r"(?m)^\| .* \| (\d+) \|$", page)]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    ours = ROOT / "submissions/cepheid"
    result = ours / "results/2x-amd-epyc-zen4/galaxy_shape-mini-closed"
    ended = ending.describe_end(definition.load("galaxy_shape", "mini"), result, ours, 5)
    example = (ROOT / "docs/python.md").read_text(encoding="utf-8").split("```")[1]
    lines = re.findall(r"(?m)^(?:import cepheid|.*datasets\.load.*)$", example)
    template = (ROOT / "docs/ci/gitlab-vendor.yml").read_text(encoding="utf-8")
    words, said = (len(text.split()) for text in (readme.partition("make run ")[0], ended))
    seconds = round((words + said) / 200 * 60)
    assert told == [words, said, seconds, len(lines), template.count("\n")]
