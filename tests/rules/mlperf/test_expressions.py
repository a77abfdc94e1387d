"""Rules of mlcommons as functions: what is listed means what Python means, the rest is refused."""

import copy
import math
import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cepheid.rules.mlperf.expressions import (
    NotSupportedError,
    compile_all,
    compile_expression,
    compile_filter,
    compile_statements,
    is_whole,
)
from cepheid.rules.mlperf.words import say

NUMBERS = st.one_of(
    st.integers(-50, 50), st.sampled_from([0.5, 0.0001, 1e-6, 2.0, 1e300]), st.booleans()
)
ATOMS = st.one_of(
    st.sampled_from(
        ["v['value']", "v['metadata']['epoch_num']", "s['batch']", "s['text']", "s['names']",
         "v['metadata']", "None", "'text'", "[1, 2.0]", "s.get('absent')", "ll.timestamp", "ll.key",
         "ll.lineno", "v", "v['absent']", "v.get('metadata')", "'value' in v", "{'a': 1, 2: 3}"]
    ),
    NUMBERS.map(repr),
)  # fmt: skip


def combine(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return expressions of everything that rules are written with."""
    operators = st.sampled_from(
        ["and", "or", "+", "-", "*", "/", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "is",
         "|", "not in", "is not"]
    )  # fmt: skip
    functions = st.sampled_from(
        ["not ({})", "-({})", "is_integer({})", "len({})", "sorted({})", "abs({})", "int({})",
         "float({})", "isinstance({}, int)", "type({}) == bool", "math.log2({})",
         "math.ceil({})", "math.floor({})", "({})[0]", "1 < ({}) <= 3", "bool({})", "str({})",
         "({}).lower()", "round({})", "math.isclose({}, 3)", "max({}, 1)", "({}).get('a', 0)"]
    )  # fmt: skip
    return st.one_of(
        st.tuples(inner, operators, inner).map(lambda p: f"({p[0]}) {p[1]} ({p[2]})"),
        st.tuples(functions, inner).map(lambda p: p[0].format(p[1])),
        st.tuples(inner, inner, inner).map(lambda p: f"({p[0]}) if ({p[1]}) else ({p[2]})"),
        st.lists(inner, max_size=3).map(lambda parts: f"[{', '.join(parts)}]"),
        st.tuples(inner, inner).map(lambda p: f"min({p[0]}, {p[1]})"),
    )


class Line:
    timestamp = 1000.0
    key = "opt_name"
    lineno = line = 7
    time_ms = 1000


def call(function: Any, state: Any, record: Any = None, *more: Any) -> Any:
    """Call what was compiled with the parts of a record."""
    record = record or {"value": None, "metadata": {}}
    return function(state, record["value"], record["metadata"], Line, *more)


VALUES = st.recursive(
    st.one_of(NUMBERS, st.none(), st.text(max_size=3)), lambda i: st.lists(i, max_size=3)
)


@pytest.mark.filterwarnings("ignore::SyntaxWarning")  # of Python's own evaluation
@given(st.recursive(ATOMS, combine, max_leaves=6), VALUES)
def test_an_expression_means_what_it_means_to_python(text: str, value: Any) -> None:
    record = {"value": value, "metadata": {"epoch_num": 3}}
    state = {"batch": 32, "text": "a", "names": ["b", "a"]}
    scope = {"is_integer": is_whole, "math": math, "s": state, "v": record, "ll": Line}
    ours, pythons = compile_expression(text), lambda: eval(text, scope)
    assert outcome(lambda: call(ours, state, record)) in (
        outcome(pythons),
        "Error",  # where Python would repeat a list or make a complex number, ours may refuse
    )
    both = compile_all(["v['value'] == v['value']", text])
    assert outcome(lambda: bool(call(both, state, record))) in (
        outcome(lambda: bool(pythons())), "Error",
    )  # fmt: skip
    line: Any = SimpleNamespace(key=Line.key, line=Line.line, time_ms=Line.time_ms, **record)
    if find_broken := compile_filter(["v['value'] == v['value']", text]):  # None with a state
        assert outcome(lambda: find_broken([line, line])) in (
            outcome(lambda: [] if pythons() else [line, line]), "Error",
        )  # fmt: skip
    else:
        assert "s[" in text or "s." in text


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["s['a'] = {}", "s['a'] += {}", "s['list'].append({})", "s['n'] *= {}",
                         "s.update({{'b': {}}})", "if {}: s['c'] = 1", "s['list'] += [{}]"]),
        st.recursive(ATOMS, combine, max_leaves=3),
    ).map(lambda pair: pair[0].format(pair[1])),
    max_size=4,
).map("\n".join)  # fmt: skip


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@given(CHANGES, VALUES)
def test_statements_mean_what_they_mean_to_python(text: str, value: Any) -> None:
    record = {"value": value, "metadata": {"epoch_num": 3}}
    fresh = {"batch": 32, "text": "a", "names": ["b", "a"], "a": 1, "list": [], "n": 2}
    ours, pythons = copy.deepcopy(fresh), copy.deepcopy(fresh)
    scope = {"is_integer": is_whole, "math": math, "s": pythons, "v": record, "ll": Line}
    said = outcome(lambda: call(compile_statements(text), ours, record, print))
    theirs = outcome(lambda: exec(text, scope))
    assert said == "Error" or (said, repr(ours)) == (theirs, repr(pythons))


def outcome(call: Any) -> str:
    try:
        made = call()
    except Exception:
        return "Error"
    return repr(made)


def test_ordinary_operations_are_no_errors() -> None:
    for text in ("2 * 21 == 42", "2 ** 0.5 < 1.5", "2 ** 70 - 1", "7 % 4 == 3", "[1] + [2]",
                 "round(2.567, 2)", "round(2.5)", "str(3)"):  # fmt: skip
        assert repr(call(compile_expression(text), {})) == repr(eval(text))


def test_one_expression_makes_nothing_large() -> None:
    for text in ("round(1, -10 ** 9)", "str([v['value']])", "'{}'.format(v['value'])",
                 "v['value'] + v['value']", "2 ** 10 ** 9"):  # fmt: skip
        started = time.process_time()
        with pytest.raises((OverflowError, TypeError)):
            call(compile_expression(text), {}, {"value": "x" * 20_000, "metadata": {}})
        assert time.process_time() - started < 1


HOSTILE = (
    "__import__('os').system('true')", "().__class__.__bases__", "v.__class__", "s.__class__",
    "open('/etc/passwd')", "exec('1')", "eval('1')", "(lambda: 1)()", "[x for x in v]",
    "{**v}", "f'{v}'", "'{0.__class__}'.format(v)", "'{:>9999999}'.format(1)", "ll.__init__",
    "ll.value", "value", "metadata",
    "math.__loader__", "math.factorial(9)", "1 << 99", "~1", "v @ v", "(y := 1)", "b'x'", "...",
    "v[0:1]", "print", "s", "yield", "await v", "sorted(v, key=len)", "len(*v)", "a.b",
    "-" * 5000 + "1", "1" + "+1" * 5000, "9" * 9999,
    "f" + "()" * 3000, "v" + "[0]" * 3000,
)  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_what_is_not_listed_is_refused_at_once(text: str) -> None:
    started = time.monotonic()
    with pytest.raises(NotSupportedError):
        compile_expression(text)
    assert time.monotonic() - started < 1


def test_type_makes_no_class() -> None:
    with pytest.raises(TypeError):
        call(compile_expression("type('X', (), {})"), {})


def test_statements_change_the_state_alone() -> None:
    for text in ["import os", "x = 1", "s = {}", "v['value'] = 1", "del s['a']", "while True: pass",
     "def f(): 1", "for x in v: pass", "s['a'], x = 1, 2", "s.a = 1", "global s", "1 + 1",
     "s.clear()", "s.update(a=1)", "try:\n  1\nexcept: 2", "with v: pass", "class A: pass",
    "x += 1"]:  # fmt: skip
        with pytest.raises(NotSupportedError):
            compile_statements(text)


def test_what_grows_with_each_record_is_bounded() -> None:
    for text in ["s['a'] = s['a'] + s['a']", "s['a'] += s['a']", "s['n'] = s['n'] * s['n']",
     "s['a'].append(s['a'][0])", "s['n'] = 10 ** s['n']", "s['n'] *= 10",
     "s['n'] -= 0 - s['n']", "s['a'] = [s['a'], s['a']]", "s['a'].append(s['a'])",
    "s.update({'a': (s['a'],)})", "s['a'] = [[s['a']] if s['a'] else 1]"]:  # fmt: skip
        started = time.monotonic()
        with pytest.raises((OverflowError, TypeError)):
            repeat(compile_statements(text), {"a": [1], "n": 10**9})
        assert time.monotonic() - started < 2


def repeat(statements: Any, state: dict[str, Any]) -> None:
    for _ in range(20_000):
        call(statements, state, None, print)


def test_statements_do_what_they_say() -> None:
    state: dict[str, Any] = {}
    asked: list[str] = []
    text = (
        "s.update({'names': [], 'first': 9e99})\n"
        "s['names'] += [v['value']]; s['first'] = min(s['first'], ll.timestamp)\n"
        "if v['value'] == 'LAMB': enqueue_config('a/{}.yaml'.format(v['value'].lower()))\n"
        "print('ignored')"
    )
    call(compile_statements(text), state, {"value": "LAMB", "metadata": {}}, asked.append)
    assert (state, asked) == ({"names": ["LAMB"], "first": 1000.0}, ["a/lamb.yaml"])


def test_a_rule_is_told_in_words() -> None:
    for text, words in [
        ("v['value'] >= 0.759 and v['value'] < 1.0", "at least 0.759 and below 1"),
        ("v['value'] in ['sgd', 'lars']", 'one of "sgd", "lars"'),
        ("is_integer(v['value'] / 0.001)", "a multiple of 0.001"),
        ("is_integer(math.log2(v['value'] / 0.0001))", "a power of two times 0.0001"),
        ("('epoch_num' in v['metadata']) | ('samples_count' in v['metadata'])",
         "metadata with epoch_num or metadata with samples_count"),
        ("not s['run_started']", "before run_start"),
        ("( s['run_started'] == True )", "after run_start"),
        ("v['value'] == s['train_samples']", "equal to train_samples"),
        ("ll.timestamp - s['first_init_start'] < (30*60*1e3)",
         "less than 30 minutes after first_init_start"),
        ("v['metadata']['epoch_count'] > 0 if 'epoch_count' in v['metadata'] else True",
         "epoch_count above 0, where it has metadata with epoch_count"),
        ("0.15 <= v['value']['CLIP'] <= 1.0", "CLIP at least 0.15 and at most 1"),
        ("type(v['value'])==bool", "true or false"),
        ("len(v['value']) == 2", "of a length equal to 2"),
        ("abs(v['value'] - s['rate']) < 1e-9", "abs(the value - rate) below 1e-09"),
        ("s['run_started'] and (v['value'] == 1 or v['value'] == 2)",
         "after run_start and (equal to 1 or equal to 2)"),
    ]:  # fmt: skip
        assert say(text, {"run_started": ("after run_start", "before run_start")}) == words
