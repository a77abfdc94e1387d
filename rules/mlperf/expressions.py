"""Expressions and statements of mlcommons' rule files, made into functions without trusting them.

A text is parsed. Each node of its tree must be of a kind, and each name one, that this module
lists; what could take all memory becomes a bounded operation. Only then is it compiled, without
builtins. An expression sees ``v`` (value and metadata of a record), ``ll`` (the record) and ``s``
(what statements have kept); statements change ``s`` alone, and may call ``enqueue_config``. The
functions take ``s``, the value, the metadata and the record, so that no ``v`` is made for each one.
"""

import ast
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol


class Line(Protocol):
    """What rules see of a record beside its value and metadata."""

    key: str
    line: int
    time_ms: float


Expression = Callable[[dict[str, Any], Any, Any, Line | None], Any]
Filter = Callable[[Sequence[Line]], Sequence[Line]]
Statements = Callable[[dict[str, Any], Any, Any, Line | None, Callable[[str], None]], None]

TEXT_MAX = 100_000  # characters
DEPTH_MAX = 40  # nodes in nodes
LENGTH_MAX = 10_000  # of a list or text that an expression makes
BITS_MAX = 4_096  # of a whole number that it makes
DIGITS_MAX = 99  # that it rounds a number to
CLOSE = 1e-5  # how far from a whole number mlcommons calls one whole


class NotSupportedError(Exception):
    """A rule that this evaluator does not know; its text says what it met."""


_KINDS = (
    ast.Expr, ast.If, ast.Pass, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub,
    ast.UAdd, ast.Div, ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE,
    ast.In, ast.NotIn, ast.Is, ast.IsNot, ast.IfExp, ast.List, ast.Tuple, ast.Set, ast.Load,
    ast.Store,
)  # fmt: skip
_CONSTANTS = (str, int, float, bool, type(None))
_TYPES = {"int": int, "float": float, "bool": bool, "str": str, "list": list, "dict": dict}
_MATH = {"log2", "log10", "log", "sqrt", "ceil", "floor", "isclose", "inf"}
_FIELDS = {"timestamp": "float(ll.time_ms)", "key": "ll.key", "lineno": "ll.line"}
_IN_SECONDS = {**_FIELDS, "timestamp": "(ll.time_ms / 1000)"}
_RECORD = "{'value': value, 'metadata': metadata}"


def is_whole(value: float) -> bool:
    """Return whether a number is a whole one, as mlcommons' checker asks it."""
    return abs(round(value) - value) < CLOSE


def _bound(made: Any) -> Any:
    is_large = isinstance(made, int) and made.bit_length() > BITS_MAX
    if is_large or (isinstance(made, list | str) and len(made) > LENGTH_MAX):
        raise OverflowError("a rule makes a value that is too large")
    return made


def _add(left: Any, right: Any) -> Any:
    return _bound(left + right)


def _extend(left: Any, right: Any) -> Any:
    """Add as ``+=`` does: a list grows in place, so that a record for each costs little."""
    left += right
    return _bound(left)


def _multiply(left: Any, right: Any) -> Any:
    if not (isinstance(left, int | float) and isinstance(right, int | float)):
        raise TypeError("only numbers can be multiplied")
    return _bound(left * right)


def _subtract(left: Any, right: Any) -> Any:
    return _bound(left - right)


def _power(left: Any, right: Any) -> float:
    are_whole = isinstance(left, int) and isinstance(right, int) and right >= 0
    if are_whole and left.bit_length() * right <= BITS_MAX:
        return left**right
    return math.pow(left, right)


def _round(value: Any, digits: int | None = None) -> Any:
    if digits is not None and abs(digits) > DIGITS_MAX:
        raise OverflowError(f"a rule rounds to more than {DIGITS_MAX} digits")
    return round(value, digits)


def _demand_plain(value: Any) -> Any:
    """Return a value that holds no others: lists in lists would outgrow their bounds."""
    if not isinstance(value, str | int | float | None):
        raise TypeError("a text, a number, true, false or null is needed")
    return value


def _text(value: Any = "") -> str:
    return str(_demand_plain(value))


def _modulo(left: Any, right: Any) -> Any:
    if isinstance(left, str):
        raise TypeError("% formats no text here")
    return left % right


def _either(left: Any, right: Any) -> Any:
    if not (isinstance(left, bool) and isinstance(right, bool)):
        raise TypeError("| joins conditions only")
    return left | right


def _append(values: Any, value: Any) -> None:
    if not isinstance(values, list):
        raise TypeError("append needs a list")
    values.append(value)
    _bound(values)


def _get(mapping: Any, key: Any, default: Any = None) -> Any:
    if not isinstance(mapping, dict):
        raise TypeError("get needs a mapping")
    return mapping.get(key, default)


def _lower(text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError("lower needs a text")
    return text.lower()


def _format(text: str, *values: Any) -> str:
    if not all(isinstance(value, str | int | float) for value in values):
        raise TypeError("format needs texts and numbers")
    for value in values:
        _bound(value)
    return str(_bound(text.format(*values)))


_OPERATIONS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: _add, ast.Sub: _subtract, ast.Mult: _multiply, ast.Pow: _power, ast.Mod: _modulo,
    ast.BitOr: _either,
}  # fmt: skip
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "is_integer": is_whole,
    "isinstance": isinstance,
    "type": lambda value: type(value),  # with three arguments it would make a class
    "print": lambda *values: None,
    **{each.__name__: each for each in (len, sorted, min, max, abs, int, float, bool)},
}
_METHODS: Mapping[str, Callable[..., Any]] = {"append": _append, "get": _get, "lower": _lower}
_SCOPE: dict[str, Any] = {
    "__builtins__": {},
    "math": math,
    **_FUNCTIONS,
    **_TYPES,
    **{each.__name__: each for each in (*_OPERATIONS.values(), *_METHODS.values())},
    **{each.__name__: each for each in (_extend, _format, _round, _text, _demand_plain)},
}
_BOUNDED = {"round": "_round", "str": "_text"}  # what stands in the place of a function


class _Rewriter(ast.NodeTransformer):
    """Refuses what is not listed, and puts bounded operations in the place of others."""

    def __init__(self, in_seconds: bool) -> None:
        self.fields = _IN_SECONDS if in_seconds else _FIELDS
        self.depth = 0

    def visit(self, node: ast.AST) -> Any:
        """Return what stands in the place of a node; raise NotSupportedError for an unknown one."""
        own = getattr(self, f"visit_{type(node).__name__}", None)
        if own is None and not isinstance(node, _KINDS):
            raise NotSupportedError(type(node).__name__)
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise NotSupportedError(f"more than {DEPTH_MAX} expressions in each other")
        made = own(node) if own else self.generic_visit(node)
        self.depth -= 1
        return made

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if not isinstance(node.value, _CONSTANTS):
            raise NotSupportedError(f"a constant of type {type(node.value).__name__}")
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id == "v":
            return _make(_RECORD)
        if node.id not in _TYPES:
            raise NotSupportedError(f"the name {node.id}")
        return node

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        if None in node.keys:
            raise NotSupportedError("** in a mapping")
        node.keys, node.values = self.hold_all(node.keys), self.hold_all(node.values)
        return node

    def visit_List(self, node: ast.List | ast.Tuple | ast.Set) -> ast.AST:
        node.elts = self.hold_all(node.elts)
        return node

    visit_Tuple = visit_Set = visit_List  # noqa: N815

    def hold_all(self, nodes: Sequence[Any]) -> list[Any]:
        """Return what a list or mapping holds; what ``s`` has kept must be plain there."""
        are_kept = [
            any(map(_is_state, ast.walk(node)))
            and not isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Dict)
            for node in nodes
        ]
        made = map(self.visit, nodes)
        return [
            _call("_demand_plain", each) if is_kept else each
            for each, is_kept in zip(made, are_kept, strict=True)
        ]

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        base = node.value.id if isinstance(node.value, ast.Name) else ""
        if node.attr not in {"math": _MATH, "ll": self.fields}.get(base, ()):
            raise NotSupportedError(f"the attribute {node.attr}")
        return _make(self.fields[node.attr]) if base == "ll" else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        match node:
            case ast.Subscript(ast.Name("v"), ast.Constant("value" | "metadata" as part)):
                return _make(part)
        if not _is_state(node.value):
            node.value = self.visit(node.value)
        node.slice = self.visit(node.slice)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        return self._operate(node.op, self.visit(node.left), self.visit(node.right))

    def _operate(
        self, kind: ast.operator, left: Any, right: Any, in_place: bool = False
    ) -> ast.expr:
        if isinstance(kind, ast.BitOr) and _is_condition(left) and _is_condition(right):
            return ast.BinOp(left, kind, right)
        if bounded := _OPERATIONS.get(type(kind)):
            name = "_extend" if in_place and bounded is _add else bounded.__name__
            return _call(name, left, right)
        return ast.BinOp(left, self.visit(kind), right)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        if not all(isinstance(each, ast.Subscript) and _is_state(each.value)
                   for each in node.targets):  # fmt: skip
            raise NotSupportedError("an assignment to anything but s[…]")
        made: ast.AST = self.generic_visit(node)
        return made

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        before = ast.parse(ast.unparse(node.target), mode="eval").body
        changed = self._operate(node.op, self.visit(before), self.visit(node.value), in_place=True)
        target = ast.Assign([node.target], ast.Constant(None))
        self.visit(target)
        target.value = changed
        return target

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if node.keywords:
            raise NotSupportedError("a named argument")
        called = node.func
        appends = isinstance(called, ast.Attribute) and called.attr == "append"
        arguments = self.hold_all(node.args) if appends else list(map(self.visit, node.args))
        if isinstance(called, ast.Name) and called.id in {*_FUNCTIONS, *_BOUNDED, "enqueue_config"}:
            return _call(_BOUNDED.get(called.id, called.id), *arguments)
        if not isinstance(called, ast.Attribute):
            raise NotSupportedError(f"a call of {ast.unparse(called)[:40]}")
        owner, method = called.value, called.attr
        if _is_state(owner) and method in ("update", "get"):
            return ast.Call(called, arguments, [])
        if method in _METHODS:
            return _call(f"_{method}", self.visit(owner), *arguments)
        if method == "format" and isinstance(owner, ast.Constant) and _is_plain(owner.value):
            return _call("_format", owner, *arguments)
        return ast.Call(self.visit_Attribute(called), arguments, [])


def _is_state(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "s"


def _is_condition(node: ast.AST) -> bool:
    """Return whether values of JSON can make a node nothing but true or false."""
    is_either = isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)
    return is_either or isinstance(node, ast.Compare)


def _make(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _is_plain(text: object) -> bool:
    """Return whether a text for ``format`` has no other braces than ``{}``."""
    return isinstance(text, str) and not set("{}") & set(text.replace("{}", ""))


def _call(name: str, *arguments: Any) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


def parse(text: str, mode: str = "eval") -> Any:
    """Return the syntax tree of a rule's text. Raises NotSupportedError where it is no Python."""
    if len(text) > TEXT_MAX:
        raise NotSupportedError(f"a rule of {len(text):,} characters")
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.parse(text.strip(), mode=mode)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise NotSupportedError(f"no Python ({error})") from None


@cache
def compile_expression(text: str, in_seconds: bool = False) -> Expression:
    """Return the function of an expression. Raises NotSupportedError for one that is not known.

    Here and in the other two, ``in_seconds`` lets it see the time of a record in seconds.
    """
    return _make_expression(_Rewriter(in_seconds).visit(parse(text).body))


def compile_all(texts: Sequence[str], in_seconds: bool = False) -> Expression | None:
    """Return the function that tells whether all of these conditions hold; None without any.

    It says no where one of them changes what it reads: those are asked one by one.
    """
    joined = _join(texts, in_seconds)
    return _make_expression(joined) if joined else None


def ask_each(s: dict[str, Any], value: Any, metadata: Any, ll: Line | None) -> bool:
    """Say of every record that its conditions must be asked one by one."""
    return False


def compile_filter(texts: Sequence[str], in_seconds: bool = False) -> Filter | None:
    """Return the function that lists the records for which not all of these conditions hold.

    One call for all of them saves one for each record. None without conditions, and where one
    depends on the records before.
    """
    joined = _join(texts, in_seconds)
    if joined is None or any(map(_is_state, ast.walk(joined))):
        return None
    each = "for ll in lines for value, metadata in [(ll.value, ll.metadata)]"
    tree: Any = ast.parse(f"lambda lines: [ll {each} if not None]", mode="eval")
    tree.body.body.generators[-1].ifs[0].operand = joined
    made: Filter = eval(_compile(tree, "eval"), dict(_SCOPE))
    return made


def _join(texts: Sequence[str], in_seconds: bool) -> ast.expr | None:
    if any("append" in text or "update" in text for text in texts):
        texts = ["False"]
    trees = [_Rewriter(in_seconds).visit(parse(text).body) for text in texts]
    return ast.BoolOp(ast.And(), trees) if len(trees) > 1 else next(iter(trees), None)


def _make_expression(body: ast.expr) -> Expression:
    tree: Any = ast.parse("lambda s, value, metadata, ll: None", mode="eval")
    tree.body.body = body
    made: Expression = eval(_compile(tree, "eval"), dict(_SCOPE))
    return made


@cache
def compile_statements(text: str, in_seconds: bool = False) -> Statements:
    """Return the function of statements. Raises NotSupportedError for those that are not known."""
    tree = ast.parse("def rule(s, value, metadata, ll, enqueue_config): pass")
    assert isinstance(tree.body[0], ast.FunctionDef)
    rewriter = _Rewriter(in_seconds)
    for node in parse(text, "exec").body:
        if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Call | ast.Constant):
            raise NotSupportedError("an expression that changes nothing")
        if not isinstance(node, ast.Expr | ast.Assign | ast.AugAssign | ast.If):
            raise NotSupportedError(type(node).__name__)
        tree.body[0].body.append(rewriter.visit(node))
    scope: dict[str, Any] = dict(_SCOPE)
    exec(_compile(tree, "exec"), scope)
    made: Statements = scope["rule"]
    return made


def _compile(tree: Any, mode: str) -> Any:
    with warnings.catch_warnings(action="ignore"):  # of odd rules, which a user cannot mend
        return compile(ast.fix_missing_locations(tree), "<a rule of mlcommons>", mode)
