"""What an installation of the core alone can do, and how it says what else is missing.

The packages of all extras are hidden from a fresh interpreter, whatever is installed.
"""

import configparser
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from cepheid.rules import definition, extras
from cepheid.rules.definition import Definition
from cepheid.rules.host import ROOT
from tests.compliance.builder import write_result
from tests.leaderboard.test_site import build_site
from tests.processes import Line, run_lines

HIDDEN = sorted({package for packages in extras.PACKAGES_OF.values() for package in packages})
HIDE = f"""
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HIDDEN}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hide())
"""


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Mapping[str, Line]]:
    """A folder with a submission and an empty one, and all lines below, ended there."""
    folder = tmp_path_factory.mktemp("core")
    (folder / "out").mkdir()
    lacking = run_lines([line for line, *_ in LACKING], HIDE, folder)
    assert [path.name for path in folder.iterdir()] == ["out"]
    mini = definition.load("galaxy_shape", "mini")
    write_result(folder / "submissions/acme", mini, blocks=lambda index: 11)
    return folder, lacking | run_lines(ENOUGH, HIDE, folder)


LACKING = [
    ("summary out", "numpy and scipy", "score"),
    ("leaderboard out --output site", "jinja2, markupsafe, numpy and scipy", "score,site"),
    (
        "run galaxy_shape --scale mini --output first",
        "torch, mlperf_logging, filelock, safetensors, numpy, scipy, galsim, astropy, jinja2, "
        "markupsafe and matplotlib",
        "torch,galsim,site",
    ),
    ("run galaxy_shape --scale mini --output k --framework keras", "", "keras,galsim,site"),
    ("data gnmt --scale mini", "", "torch,translation"),
    ("measure speed mask_rcnn", "", "torch,galsim,imagenet,detection,site"),
    ("measure targets galaxy_shape", "", "torch,galsim,site"),
    ("measure staleness galaxy_shape", "", "torch,galsim,site"),
    ("measure sweep resnet50 --batch-sizes 4", "", "torch,imagenet,site"),
    ("measure scaling resnet50", "", "torch,imagenet,site"),
    ("rcp galaxy_shape --scale mini --batch-size 16", "", "torch,galsim,site"),
]
ENOUGH = [
    "--version", "check submissions/acme", "check submissions/acme --format sarif",
    "check --explain T16", "pack submissions/acme", "describe-system",
    "new-submission umbrella --benchmark galaxy_shape --submissions submissions", "run --list",
    "run galaxy_shape --list", "rcp galaxy_shape --scale mini", "measure epochs galaxy_shape",
]  # fmt: skip


@pytest.mark.parametrize(("line", "packages", "named"), LACKING)
def test_one_message_names_all_that_is_missing(
    line: str, packages: str, named: str, begun: tuple[Path, Mapping[str, Line]]
) -> None:
    ended = begun[1][line]
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith(f"cepheid: {packages}")
    assert ended.stderr.endswith(f"{extras.format_command(named.split(','))}\n")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("line", ENOUGH)
def test_the_core_is_enough(line: str, begun: tuple[Path, Mapping[str, Line]]) -> None:
    ended = begun[1][line]
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout
    assert "Traceback" not in ended.stderr


def test_the_core_brings_none_of_them() -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    core = settings["options"]["install_requires"].lower()
    assert not [package for package in HIDDEN if package in core]


def test_diff_needs_nothing_else(star_shape: Definition) -> None:
    """Only the test whether a result is really faster needs scipy, and says so."""
    pytest.importorskip("jinja2", reason="the two leaderboards need the extra site")
    write_result(Path("out"), star_shape)
    text = build_site(Path("out"))["results.json"]
    document = json.loads(text)
    (result,) = document["results"]
    result["comparison"]["log_mean"] -= 1
    result["score_minutes"] /= 2
    Path("old.json").write_text(text)
    Path("new.json").write_text(json.dumps(document))

    lines = ["diff old.json old.json", "diff old.json new.json"]
    lines.append(f"{lines[1]} --format json")
    same, ended, in_json = run_lines(lines, HIDE, Path.cwd()).values()
    assert (same.returncode, same.stdout, same.stderr) == (0, "nothing changed\n", "")
    assert ended.returncode == 1, ended.stderr
    assert "2.72 times as fast; it was not tested whether this is more than chance" in ended.stdout
    assert "score minutes: " in ended.stdout
    assert "scipy is not installed; it comes with the extra score: " in ended.stderr
    assert json.loads(in_json.stdout)[0]["speed"]["verdict"] == "not tested"
