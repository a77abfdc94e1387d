"""The house is as ``house.toml`` says, and the guard sees what it must see."""

import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.house.__main__ import ROOT, main, read_graph
from tests.house.ceilings import judge, lower_ceilings
from tests.house.graph import Graph, find_circle, find_closure
from tests.house.source import list_files, read_house

# A house of three rooms, imported as `star.ground` and so on, with small limits.
PLAN = """
prefix = "star"
tests = "proofs"
not_ours = ["parcels"]
[rooms]
ground = []
shop = ["ground"]
roof = ["ground", "shop.desk"]
[wings]
shop = ["store", "desk"]
[kinds]
python = ["*.py"]
yaml = ["*.yaml"]
[limits]
modules_in_folder = 3
shortest_module = 1
longest_module = 20
classes_in_mro = 3
parameters = 6
closure = 1000
[tasks]
entries = "shop/*/task.py"
definition = "facts.yaml"
field = "goods"
libraries = ["shop.library"]
[ceilings.python]
outside_tests = 100
[ceilings.lines.ground]
python = 100
[ceilings.lines.shop]
python = 100
[ceilings.lines.roof]
python = 100
"""
ROOMS = {
    "ground/base.py": "VALUE = 1\n",
    "shop/store/shelf.py": "VALUE = 1\n",
    "shop/desk/till.py": "VALUE = 1\n",
    "roof/tile.py": "VALUE = 1\n",
}


def build(root: Path, files: dict[str, str], plan: str = PLAN) -> Graph:
    """Return the graph of a house with these files beside one module in each room."""
    for path, text in {**ROOMS, **files}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    return Graph(read_house(root, plan))


def test_the_house_is_as_its_plan_says() -> None:
    messages = judge(read_graph(ROOT))
    assert not messages, "\n\n" + "\n\n".join(messages)


def test_a_house_within_its_limits_has_no_fault_and_lowering_raises_nothing(tmp_path: Path) -> None:
    assert judge(build(tmp_path, {})) == []
    files = {
        "ground/long.py": "pass\n" * 20,
        "ground/base.py": "class A:\n    def f(self, a, b, c, d, e, g): ...\n",
        "ground/classes.py": "class A: ...\nclass B(A): ...\nclass B(B): ...\n",
        "ground/__init__.py": "",
        "parcels/strange.py": "import shop\n" * 500,
    }
    assert judge(build(tmp_path, files)) == []
    plan = PLAN.replace("outside_tests = 100", "outside_tests = 3")
    assert "outside_tests = 3\n" in lower_ceilings(plan, build(tmp_path, {}, plan))


@pytest.mark.parametrize(
    ("code", "place"),
    [
        ("import shop.desk.till\n", "1 imports shop.desk.till"),
        ("from shop.desk import till\n", "1 imports shop.desk.till"),
        ("from star.shop.desk.till import VALUE\n", "1 imports shop.desk.till"),
        ("from star import shop\n", "1 imports shop"),
        ("def sell():\n    from shop.desk import till\n", "2 imports shop.desk.till"),
        ("class A:\n  async def f(self):\n    import shop\n", "3 imports shop"),
        ("if TYPE_CHECKING:\n    import shop.desk\n", "2 imports shop.desk"),
        ("if typing.TYPE_CHECKING:\n    import shop\n", "2 imports shop"),
        ("try:\n    pass\nexcept E:\n    import shop\n", "4 imports shop"),
        ("try:\n    pass\nfinally:\n    import shop\n", "4 imports shop"),
        ("match 1:\n  case 1:\n    import shop\n", "3 imports shop"),
        ("with a:\n  for b in c:\n    import shop\n", "3 imports shop"),
        ("\nimport_module('shop.desk.till')\n", "2 imports shop.desk.till (by string)"),
        ("importlib.import_module('star.shop.desk')\n", "1 imports shop.desk (by string)"),
        ("import_module(f'shop.{name}.till')\n", "1 imports shop.*.till (by string)"),
        ("import_module(f'star.shop.{name}')\n", "1 imports shop.* (by string)"),
        ("import_module(f'{PREFIX}.shop.{name}')\n", "1 imports shop.* (by string)"),
        ("import_module('shop.' + name)\n", "1 imports shop.* (by string)"),
        ("import_module('shop.{}.till'.format(name))\n", "1 imports shop.*.till (by string)"),
        ("import_module('shop.%s.till' % name)\n", "1 imports shop.*.till (by string)"),
        ("TABLE = {'sell': ('shop.desk.till', 'sell a thing')}\n", "1 imports shop.desk.till"),
        ("RUN = ('-m', 'shop.desk.till')\n", "1 imports shop.desk.till (by string)"),
    ],
)
def test_an_import_of_an_upper_room_is_found(code: str, place: str, tmp_path: Path) -> None:
    (message,) = judge(build(tmp_path, {"ground/base.py": code}))
    assert f"ground/base.py:{place}" in message
    assert "ground may import no other room" in message


@pytest.mark.parametrize(
    "code",
    [
        "import os, ground.other, workshop.desk\n",
        "raise Error(f'shop.{name} is closed')\n",
        "'''The module shop.desk.till sells.'''\n",
        "NAME = 'shop.txt'\n",
    ],
)
def test_other_imports_and_texts_are_no_arrows(code: str, tmp_path: Path) -> None:
    assert judge(build(tmp_path, {"ground/base.py": code, "ground/other.py": "\n"})) == []


def test_an_import_of_an_upper_wing_is_found_and_a_room_may_use_one_wing(tmp_path: Path) -> None:
    files = {
        "shop/desk/clerk.py": "from shop.store import shelf\n",
        "shop/store/shelf.py": "def f():\n    import star.shop.desk.till\n",
        "shop/store/box.py": "import_module(f'shop.{wing}.till')\n",
        "shop/cellar/wine.py": "import shop.store.shelf\n",
    }
    cellar, box, shelf = sorted(judge(build(tmp_path, files)))
    assert '"cellar" is not in the order of the wings of shop' in cellar
    assert 'shop/store/box.py:1 imports shop.*.till (by string): in shop, "desk" stands' in box
    assert "shop/store/shelf.py:2 imports shop.desk.till: in shop" in shelf
    code = "import ground.base\nimport star.shop.desk.till\nfrom shop.store import shelf\n"
    (message,) = judge(build(tmp_path / "one", {"roof/tile.py": code}))
    assert "roof/tile.py:3 imports shop.store.shelf" in message
    assert "roof may import ground, shop.desk" in message


def test_a_circle_of_three_files_is_found_but_a_registry_is_none(tmp_path: Path) -> None:
    files = {
        "ground/a.py": "from star.ground import b\n",
        "ground/b.py": "def f():\n    from ground.c import VALUE\n",
        "ground/c.py": "if TYPE_CHECKING:\n    from .a import Thing\n",
    }
    plan = PLAN.replace("modules_in_folder = 3", "modules_in_folder = 4")
    (message,) = judge(build(tmp_path, files, plan))
    assert "import each other in a circle:\n" in message
    assert "ground/a.py:1 imports ground.b\n" in message
    assert "ground/b.py:2 imports ground.c\n" in message
    assert "ground/c.py:2 imports ground.a\n" in message
    files = {
        "ground/__init__.py": "def load(name):\n    return import_module(f'ground.{name}')\n",
        "ground/base.py": "from ground import load\nimport ground.base as itself\n",
    }
    assert not list(find_circle(build(tmp_path / "registry", files)))


DEEP = {
    "ground/__init__.py": "from star.ground.base import One\n",
    "ground/base.py": "class Zero(Exception): ...\nclass One(Zero): ...\n",
    "roof/tile.py": "import ground as g\nclass Two(g.One): ...\nclass Three(Two[int]): ...\n",
}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"ground/long.py": "pass\n" * 21},
         ["long_modules ground: 1 modules are too long, the ceiling is 0", "long.py (21)"]),
        ({"ground/empty.py": ""}, ["short_modules ground: 1 modules are too short"]),
        ({f"ground/{name}.py": "pass\n" for name in "abc"},
         ["folders ground: 4 modules in the folder, the ceiling is 3", "ground/a.py"]),
        ({"ground/base.py": "\ndef sell(a, b, /, c, *d, e, f, **g): ...\n"},
         ["parameters ground: 1 functions have too many", "ground/base.py:2 sell (7)"]),
        ({"ground/base.py": "class A:\n  @staticmethod\n  def f(a, b, c, d, e, f, g): ...\n"},
         ["ground/base.py:3 f (7)"]),
        (DEEP, ["deep_classes roof: 1 classes have", "roof/tile.py:3 Three (4)"]),
        (DEEP, ["deepest_class roof: 4 classes of ours in one MRO, the ceiling is 3"]),
        ({f"ground/part{n}/a.py": "pass\n" * 20 for n in range(5)},
         ["lines.ground python: 101 lines, the ceiling is 100", "ground/part0/a.py (20)"]),
        ({f"ground/part{n}/a.py": "pass\n" * 20 for n in range(5)},
         ["python outside_tests: 104 lines, the ceiling is 100"]),
        ({"ground/a.yaml": "a: 1\n"}, ["lines.ground yaml: 1 lines", "ground/a.yaml"]),
        ({"attic/chest.py": "import shop\n"}, ["lines.elsewhere python: 1 lines", "attic/chest"]),
    ],
)  # fmt: skip
def test_a_number_above_its_ceiling_is_found(
    files: dict[str, str], expected: list[str], tmp_path: Path
) -> None:
    messages = judge(build(tmp_path, files))
    assert any(all(text in message for text in expected) for message in messages), messages
    assert all("fix:" in message for message in messages)


def test_a_closure_counts_every_import_and_has_a_ceiling(tmp_path: Path) -> None:
    files = {
        "shop/__init__.py": "\n",
        "shop/cake/__init__.py": "\n",
        "shop/cake/task.py": "import star.ground.base\ndef f():\n    import shop.tools.knife\n",
        "shop/cake/facts.yaml": "scales: [{goods: sugar, extras: salt}]\n",
        "shop/cake/taste.py": "pass\n" * 3,
        "shop/pie/taste.py": "pass\n",
        "shop/tools/knife.py": "import shop.library.big\nimport_module(f'shop.{name}.taste')\n",
        "shop/library/big.py": "import shop.store.shelf\n",
        "ground/base.py": "if TYPE_CHECKING:\n    import ground.types\nload(f'ground.{goods}')\n",
        "ground/types.py": "\n",
        "ground/sugar/__init__.py": "\n",
        "ground/salt/__init__.py": "\n",
        "star/__init__.py": "\n\n",
    }
    graph = build(tmp_path, files, PLAN.replace("[rooms]", "[rooms]\nstar = []"))
    assert find_closure(graph, graph.house.modules["shop.cake.task"]) == {
        "shop/__init__.py": 1, "shop/cake/__init__.py": 1, "shop/cake/task.py": 3,
        "shop/cake/taste.py": 3, "shop/tools/knife.py": 2, "ground/base.py": 3,
        "ground/types.py": 1, "ground/sugar/__init__.py": 1, "star/__init__.py": 2,
    }  # fmt: skip
    files = {"shop/cake/task.py": "pass\n" * 20}
    plan = PLAN.replace("closure = 1000", "closure = 19")
    (message,) = judge(build(tmp_path / "ceiling", files, plan))
    assert "closures cake: 20 lines behind the task, the ceiling is 19" in message


LOOSE = PLAN.replace("[ceilings.python]", '[ceilings.folders]\n"ground" = 9\n[ceilings.python]')
LOOSE = LOOSE.replace("outside_tests = 100", "outside_tests = 2_000  # many")
LOOSE += "yaml = 50\n"


def test_ceilings_that_are_not_needed_are_found_and_lowered(tmp_path: Path) -> None:
    graph = build(tmp_path, {}, LOOSE)
    python, folder, yaml = judge(graph)
    assert "python outside_tests: 4 lines, below the ceiling 2,000" in python
    assert "folders ground: 1 modules in the folder, below the ceiling 9" in folder
    assert "lines.roof yaml: 0 lines, below the ceiling 50" in yaml
    lowered = lower_ceilings(LOOSE, graph)
    expected = PLAN.replace("= 100\n", "= 50\n").replace("tests = 50", "tests = 50  # many")
    assert lowered == expected.replace("[ceilings.python]", "[ceilings.folders]\n[ceilings.python]")
    assert judge(build(tmp_path, {}, lowered)) == []


def test_names_of_rooms_and_wings_must_exist(tmp_path: Path) -> None:
    plan = PLAN.replace("ground = []", 'ground = ["cellar"]')
    plan = plan.replace('["store", "desk"]', '["store", "stair"]').replace("shop.desk", "shop.dsk")
    messages = judge(build(tmp_path, {}, plan))
    named = {message.split('"')[1] for message in messages if "where no module is" in message}
    assert named == {"cellar", "shop.dsk", "shop.stair"}


def test_links_to_rooms_are_not_followed(tmp_path: Path) -> None:
    build(tmp_path, {"star/face.py": "import star.shop.desk.till\n"})
    for room in ("ground", "shop", "roof"):
        (tmp_path / "star" / room).symlink_to(f"../{room}")
    plan = PLAN.replace("[rooms]", '[rooms]\nstar = ["ground"]')
    plan = plan.replace("[ceilings.python]", "[ceilings.lines.star]\npython = 1\n[ceilings.python]")
    (message,) = judge(build(tmp_path, {}, plan))
    assert "star/face.py:1 imports shop.desk.till" in message
    assert "star may import ground" in message


def test_git_and_walking_list_the_same_files(tmp_path: Path) -> None:
    build(tmp_path, {".gitignore": "*.log.py\n", "attic/chest.py": "\n", "parcels/x.py": "\n"})
    plan = tomllib.loads(PLAN)
    walked = list_files(tmp_path, plan)
    assert walked == sorted([".gitignore", "attic/chest.py", *ROOMS])
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", ".gitignore", "attic", "ground"], cwd=tmp_path, check=True)
    (tmp_path / "ground" / "a.log.py").write_text("\n", encoding="utf-8")
    (tmp_path / "scratch.py").write_text("\n", encoding="utf-8")
    assert list_files(tmp_path, plan) == walked  # new files of rooms, none that git ignores


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return the folder of a house with a plan that can come down."""
    build(tmp_path, {"tests/house.toml": LOOSE, "shop/cake/task.py": "import ground.base\n"})
    return tmp_path


def test_the_script_prints_numbers_faults_and_what_is_behind_a_number(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([], checkout) == 1
    printed = capsys.readouterr().out
    assert "outside_tests                            5  of   2,000  can come down" in printed
    assert "below the ceiling 2,000" in printed
    assert main(["--lower"], checkout) == 0
    assert "can come down" not in capsys.readouterr().out
    assert main(["closures", "cake"], checkout) == 0
    assert "    shop/cake/task.py (1)\n" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        main(["closure"], checkout)
    assert stopped.value.code == 2
    assert 'nothing is called "closure" (all: ' in capsys.readouterr().err
