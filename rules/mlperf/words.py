"""What a rule of mlcommons asks for, in words: the usual forms, else the expression itself.

``at least 0.759 and below 1``, ``one of "sgd", "lars"``, ``a multiple of 0.001``,
``metadata with epoch_num``, ``after run_start``, ``equal to train_samples``.
"""

import ast
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from cepheid.rules.mlperf.expressions import parse

WORDS_MAX = 300  # characters
WHOLE_MAX = 1e15  # beyond it, a float is not written as a whole number

_COMPARED: Mapping[type[ast.cmpop], str] = {
    ast.Eq: "equal to {}", ast.NotEq: "other than {}", ast.Lt: "below {}", ast.LtE: "at most {}",
    ast.Gt: "above {}", ast.GtE: "at least {}", ast.Is: "{}", ast.IsNot: "not {}",
}  # fmt: skip
_MIRRORED: Mapping[type[ast.cmpop], ast.cmpop] = {
    ast.Lt: ast.Gt(), ast.LtE: ast.GtE(), ast.Gt: ast.Lt(), ast.GtE: ast.LtE(), ast.Eq: ast.Eq(),
}  # fmt: skip
_TYPES = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text"}
_VALUE, _METADATA = "v['value']", "v['metadata']"
_READ = re.compile(r"v\['(value|metadata)'\](?:\['(\w+)'\])?|s\['(\w+)'\]|(ll\.timestamp)")


Flags = Mapping[str, tuple[str, str]]
"""What flags of ``s`` mean, set and not set: ("after run_start", "before run_start")."""


def find_flags(set_by: Mapping[str, str], cleared_by: Mapping[str, str]) -> Flags:
    """Return what flags mean, from the keys whose records set and clear them."""
    found = {}
    for flag, key in set_by.items():
        end = cleared_by.get(flag)
        span = f"between {key} and {end}"
        found[flag] = (span, f"not {span}") if end else (f"after {key}", f"before {key}")
    return found


def say(text: str, flags: Flags) -> str:
    """Return what an expression asks for."""
    words = _say(parse(text).body, flags)
    return words if len(words) <= WORDS_MAX else f"{words[: WORDS_MAX - 2]} …"


def list_read(text: str) -> tuple[tuple[str, str], ...]:
    """Return what an expression reads: ("value" | "metadata" | "s" | "time", name), each once."""
    found: dict[tuple[str, str], None] = {}
    for part, name, state, time in _READ.findall(text.replace('"', "'")):
        found["time" if time else "s" if state else part, state or name] = None
    return tuple(found)


def _say(node: ast.expr, flags: Flags) -> str:
    match node:
        case ast.BoolOp(op, values):
            joint = " and " if isinstance(op, ast.And) else " or "
            return joint.join(
                f"({_say(each, flags)})" if isinstance(each, ast.BoolOp) else _say(each, flags)
                for each in values
            )
        case ast.BinOp(left, ast.BitOr(), right):
            return f"{_say(left, flags)} or {_say(right, flags)}"
        case ast.UnaryOp(ast.Not(), operand) if flag := _find_flag(operand, flags):
            return flag[1]
        case ast.UnaryOp(ast.Not(), operand):
            return f"not {_say(operand, flags)}"
        case ast.IfExp(test, body, ast.Constant(True)):
            return f"{_say(body, flags)}, where it has {_say(test, flags)}"
        case ast.IfExp(test, body, other):
            return f"{_say(body, flags)} if {_say(test, flags)}, else {_say(other, flags)}"
        case ast.Compare(left, [op], [right]):
            return _say_comparison(left, op, right, flags)
        case ast.Compare(ast.Constant() as low, [first, second], [middle, high]):
            mirrored = _MIRRORED.get(type(first), first)
            return (
                f"{_say_comparison(middle, mirrored, low, flags)} and "
                f"{_say_comparison(middle, second, high, flags).removeprefix(_name(middle))}"
            )
        case ast.Call(ast.Name(name), [inner]) if name == "is_integer":
            return _say_whole(inner)
        case ast.Call(ast.Attribute(_, "isclose"), [value, wanted]):
            return f"{_name(value)}close to {_write(wanted)}"
        case ast.Call(ast.Name("isinstance"), [value, ast.Name(name)]):
            return f"{_name(value)}{_TYPES.get(name, name)}"
    flag = _find_flag(node, flags)
    return flag[0] if flag else _write(node)


def _say_comparison(left: ast.expr, op: ast.cmpop, right: ast.expr, flags: Flags) -> str:
    match left, op, right:
        case _, ast.Eq(), ast.Constant(bool(wanted)) if flag := _find_flag(left, flags):
            return flag[0 if wanted else 1]
        case ast.Constant(str(name)), ast.In(), _ if ast.unparse(right) in (_VALUE, _METADATA, "v"):
            return f"{'a value' if ast.unparse(right) == _VALUE else 'metadata'} with {name}"
        case _, ast.In(), ast.List(each) | ast.Set(each) | ast.Tuple(each):
            return f"{_name(left)}one of {', '.join(map(_write, each))}"
        case ast.Call(ast.Name("len"), [value]), _, _:
            return f"{_name(value)}of a length {_compare(op, right)}"
        case ast.Call(ast.Name("type"), [value]), ast.Eq(), ast.Name(name):
            return f"{_name(value)}{_TYPES.get(name, name)}"
        case ast.Call(ast.Name("sorted"), [first]), ast.Eq(), ast.Call(_, [ast.List(each)]):
            return f"{_write(first)} to be these {len(each)}: {', '.join(map(_write, each))}"
        case ast.BinOp(ast.Attribute(ast.Name("ll"), "timestamp"), ast.Sub(), since), ast.Lt(), _:
            return f"less than {_write(right)} after {_write(since)}"
    if type(op) not in _COMPARED:
        return _write(ast.Compare(left, [op], [right]))
    return f"{_name(left)}{_compare(op, right)}"


def _compare(op: ast.cmpop, right: ast.expr) -> str:
    return _COMPARED.get(type(op), "{}").format(_write(right))


def _say_whole(inner: ast.expr) -> str:
    match inner:
        case ast.BinOp(value, ast.Div(), unit):
            return f"{_name(value)}a multiple of {_write(unit)}"
        case ast.Call(ast.Attribute(_, "log2"), [ast.BinOp(value, ast.Div(), unit)]):
            return f"{_name(value)}a power of two times {_write(unit)}"
    return f"{_name(inner)}a whole number"


def _name(node: ast.expr) -> str:
    """Return what is compared, with a blank behind it; nothing for the value of the record."""
    return "" if ast.unparse(node) == _VALUE else f"{_write(node)} "


def _find_flag(node: ast.expr, flags: Flags) -> tuple[str, str] | None:
    match node:
        case ast.Subscript(ast.Name("s"), ast.Constant(str(name))):
            return flags.get(name)
    return None


def _write(node: ast.expr) -> str:
    """Return an expression as a reader writes it: ``s['train_samples']`` is train_samples."""
    match node:
        case ast.Constant(float(number)) if number.is_integer() and abs(number) < WHOLE_MAX:
            return str(int(number))
        case ast.Constant(value):
            return json.dumps(value)
        case ast.BinOp(ast.BinOp(_, ast.Mult(), ast.Constant(60)), ast.Mult(), ast.Constant(1000)):
            return f"{_write(node.left.left)} minutes"  # type: ignore[attr-defined]
    text = ast.unparse(node)
    for pattern, shown in _SHOWN:
        text = pattern.sub(shown, text)
    return text


_Shown = tuple[re.Pattern[str], str | Callable[[re.Match[str]], Any]]
_SHOWN: tuple[_Shown, ...] = (
    (re.compile(r"v\['metadata'\]\['(\w+)'\]"), r"\1"),
    (re.compile(r"v\['value'\]\['(\w+)'\]"), r"\1"),
    (re.compile(r"s\['(\w+)'\]|s\.get\('(\w+)'\)"), r"\1\2"),
    (re.compile(r"v\['(value|metadata)'\]"), r"the \1"),
    (re.compile(r"ll\.timestamp"), "its time"),
)
