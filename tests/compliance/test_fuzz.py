"""A small share of the fuzzing that tests/fuzz.py does at length."""

import random

from hypothesis import given
from hypothesis import strategies as st

from cepheid.compliance.checks import Place
from cepheid.rules import definition
from tests.compliance.builder import line_of, run_records
from tests.compliance.mutations import PATHS, PLACES, judge, mutate

MINI = definition.load("galaxy_shape", "mini")
CORPUS = [
    [line_of(record).encode() for record in run_records(MINI, blocks=2, converged=converged)]
    for converged in (True, False)
]
INPUTS = 400


def test_changed_logs_bring_nothing_down() -> None:
    found = 0
    for number in range(INPUTS):
        chance = random.Random(f"test/{number}")
        content = mutate(chance, CORPUS)
        path, place = chance.choice(PATHS), PLACES[number % len(PLACES)]
        found += judge(content, path, place, reported=number % 20 == 0)
    assert found > INPUTS / 2, "the changes are seen"


@given(
    lines=st.sampled_from([0, 1, 20]),
    content=st.binary(max_size=400).flatmap(lambda b: st.sampled_from([b, b":::MLLOG " + b])),
    place=st.sampled_from(PLACES),
)
def test_any_bytes_after_a_compliant_beginning(lines: int, content: bytes, place: Place) -> None:
    judge(b"\n".join([*CORPUS[0][:lines], content]), PATHS[0], place)


def test_many_different_unknown_keys_take_no_long_time() -> None:
    """Suggestions for each of them once took minutes."""
    line = CORPUS[0][10]
    key = line.split(b'"key": "')[1].split(b'"')[0]
    many = [line.replace(key, b"opt_lerning_rate%d" % number) for number in range(3000)]
    assert judge(b"\n".join(CORPUS[0][:20] + many), PATHS[0], PLACES[0])
