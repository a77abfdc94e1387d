"""Every public function that takes or returns tensors says their shapes."""

import ast
import re
from collections.abc import Iterator

import pytest

from cepheid.rules.host import ROOT
from tests.checkout import ROOMS

TENSOR = re.compile(r"\b(Tensor|ndarray)\b")
SIZE = r"(?:…|[\w²]+(?: [·×+/] [\w²]+)*)"
# A tuple of sizes, (batch, 3, 64, 64), or words. N(0, 1) is none, nor is the shape of a galaxy.
SHAPE = re.compile(
    rf"(?<!\w)\({SIZE},(?: {SIZE}(?:, {SIZE})*)?\)|\bscalars?\b"
    r"|\b(?:any|own|same|their|in the) shapes?\b|\bshapes? (?:as|are|of) (?:those|``)",
    re.IGNORECASE,
)


def find_without_shapes(source: str) -> Iterator[str]:
    """Yield line and name of the functions of which neither docstring nor class names a shape."""
    tree = ast.parse(source)
    scopes: list[ast.Module | ast.ClassDef] = [tree]
    scopes += [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    for scope in scopes:
        if isinstance(scope, ast.ClassDef) and scope.name.startswith("_"):
            continue
        of_class = ast.get_docstring(scope) if isinstance(scope, ast.ClassDef) else ""
        for node in scope.body:
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
                continue
            if any(ast.unparse(each) == "override" for each in node.decorator_list):
                continue  # the method that it overrides names them
            returns = ast.unparse(node.returns) if node.returns else ""
            has_tensors = TENSOR.search(f"{ast.unparse(node.args)} {returns}")
            if has_tensors and not SHAPE.search(f"{ast.get_docstring(node)} {of_class}"):
                yield f"{node.lineno} {node.name}"


def test_public_functions_name_the_shapes_of_tensors() -> None:
    missing = [
        f"{path.relative_to(ROOT)}:{found}"
        for package in ROOMS
        for path in sorted((ROOT / package).rglob("*.py"))
        for found in find_without_shapes(path.read_text(encoding="utf-8"))
    ]
    assert not missing, "docstrings without the shapes of their tensors:\n" + "\n".join(missing)


@pytest.mark.parametrize(
    ("docstring", "names_shape"),
    [
        ("Return images (batch, 3, 64, 64).", True),
        ("Return the losses, (n,).", True),
        ("Map to (n, 4 × inner, y / stride).", True),
        ("Return the loss, a scalar.", True),
        ("Sum values of any shape.", True),
        ("Return the loss; shapes as ``predict``.", True),
        ("Return the sum.", False),
        ("Return noise from N(0, 1).", False),
        ("Return the loss (equation 2 of the paper).", False),
        ("Return means of the shapes of galaxies.", False),
    ],
)
def test_a_shape_is_told_from_other_words(docstring: str, names_shape: bool) -> None:
    function = f'def compute(values: Tensor) -> Tensor:\n    """{docstring}"""\n'
    assert list(find_without_shapes(function)) == ([] if names_shape else ["1 compute"])
    method = f'class Task:\n    """{docstring}"""\n    def step(self) -> Tensor: ...\n'
    assert list(find_without_shapes(method)) == ([] if names_shape else ["3 step"])
