"""A site that several processes make has the same files as one that a single process makes."""

import os
import signal
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from compliance import site
from compliance.judge.judgement import judge
from compliance.read import package
from compliance.site.forked import File, make_parts
from rules import rounds
from rules.definition import Definition
from tests.compliance.many import write_many


def test_two_processes_make_the_same_files(star_shape: Definition) -> None:
    root = write_many(Path("out"), 25, [star_shape])
    judgement = judge([package.read(root)], rounds.load(), with_course=True)
    made = site.Site(judgement.round, tuple(site.list_entries(judgement)), Path("site"))
    alone, together = list(site.build(made, 1)), list(site.build(made, 2))
    assert dict(alone) == dict(together)
    assert len(alone) == len(together) > 50
    assert together[-1] == alone[-1]  # files.txt


def test_an_error_in_a_process_is_raised() -> None:
    def fail(part: int) -> list[File]:
        raise ValueError(f"part {part}")

    with pytest.raises(ValueError, match="part 0"):
        list(make_parts(fail, 1, 2))


def test_a_process_that_is_killed_is_an_error() -> None:
    def die(part: int) -> list[File]:
        os.kill(os.getpid(), signal.SIGKILL)
        return []

    with pytest.raises(BrokenProcessPool):
        list(make_parts(die, 2, 2))
