"""The lines of the site's README that load a site into pandas."""

import re
from pathlib import Path

import pytest

from cepheid.rules.definition import Definition
from cepheid.rules.host import ROOT
from cepheid.tools import build_leaderboard
from tests.compliance.mixed import write_mixed


def test_a_site_is_loaded_into_pandas(
    star_shape: Definition, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    write_mixed(Path("out"), star_shape)
    build_leaderboard.main(["out", "--output", "site"])
    readme = (ROOT / "leaderboard" / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    found: dict[str, object] = {}
    exec(code, found)
    results, curves = found["results"], found["curves"]
    assert {"quality_rmse", "accelerator", "framework", "score_low"} <= set(results)  # type: ignore[call-overload]
    assert len(curves) >= 3 * 5 * 3  # type: ignore[arg-type]
    assert "star_shape" in capsys.readouterr().out
