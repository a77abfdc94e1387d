"""Whatever one submission contains, every command ends well and no other submission is affected.

A small share of the fuzzing that tests/fuzz.py does at length.
"""

import random
from collections.abc import Iterator

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

pytest.importorskip("jinja2", reason="the leaderboard needs the extra site")

from tests.compliance import hostile, small

EXAMPLES = 10 if settings().derandomize else 200  # a commit has few seconds for it


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hostile.Bench]:
    """Two submissions, and what is published of the one that stays as it is."""
    with pytest.MonkeyPatch.context() as patched:
        work = tmp_path_factory.mktemp("hostile")
        yield hostile.make_bench(work, small.install(work / "benchmarks", patched))


@settings(max_examples=EXAMPLES, phases=(Phase.generate,))
@given(st.integers(0, 2**32))
def test_no_submission_brings_a_command_down(bench: hostile.Bench, seed: int) -> None:
    hostile.try_damage(bench, random.Random(seed))
