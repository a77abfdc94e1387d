"""The Containerfile, read without building: what it copies exists, and it installs what there is.

A build takes minutes and a registry; docs/cluster/README.md says where one was tried.
"""

import configparser
import re
import shlex

import pytest

from cepheid.rules.installation import ROOT


def read_instructions() -> list[tuple[str, str]]:
    """Return instruction and arguments of each line, continued lines in one."""
    text = (ROOT / "Containerfile").read_text(encoding="utf-8")
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


def test_what_it_copies_is_there_and_nothing_is_missing() -> None:
    copied = list_copied()
    assert [name for name in copied if not (ROOT / name).exists()] == []
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    rooms = {path.name for path in (ROOT / "cepheid").iterdir() if path.is_symlink()}
    named = {setup["metadata"]["license_files"], setup["metadata"]["long_description"].split()[-1]}
    assert rooms | named | {"cepheid", "setup.cfg", "pyproject.toml"} <= copied


def test_the_build_context_has_what_it_copies() -> None:
    lines = (ROOT / ".containerignore").read_text(encoding="utf-8").splitlines()
    assert {line[1:] for line in lines if line.startswith("!")} == list_copied()


def test_it_installs_extras_of_setup_cfg_as_the_makefile_does() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = set(setup["options.extras_require"])
    (install,) = (rest for rest in find("RUN") if "pip" in rest)
    arguments = dict(rest.split("=", 1) for rest in find("ARG") if "=" in rest)
    groups = re.findall(r'"\.\[(.*?)\]"', install)
    assert len(groups) == 2
    for group in groups:
        wanted = group.replace("$EXTRAS", arguments["EXTRAS"]).split(",")
        assert set(wanted) <= extras
        assert "torch" in wanted
    assert "--constraint constraints.txt" in install
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (editable,) = re.findall(r"(?m)^EDITABLE := (.*)$", makefile)
    assert editable in install


def test_its_python_is_new_enough() -> None:
    (base,) = (rest.partition("=")[2] for rest in find("ARG") if rest.startswith("BASE="))
    version = tuple(map(int, re.findall(r"python:(\d+)\.(\d+)", base)[0]))
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    least = tuple(map(int, re.findall(r"(\d+)\.(\d+)", setup["options"]["python_requires"])[0]))
    assert version >= least


def test_it_does_not_run_as_root() -> None:
    instructions = read_instructions()
    users = [rest for name, rest in instructions if name == "USER"]
    assert users == ["cepheid"]
    after = instructions[instructions.index(("USER", "cepheid")) :]
    assert [name for name, _ in after if name in ("RUN", "COPY", "ADD")] == []
    assert 'ENTRYPOINT ["cepheid"]' in (ROOT / "Containerfile").read_text(encoding="utf-8")


@pytest.mark.parametrize("build", ["cpu", "cuda"])
def test_it_knows_both_builds(build: str) -> None:
    (install,) = (rest for rest in find("RUN") if "pip" in rest)
    assert re.search(rf"\b{build}\) set -- ", install)
