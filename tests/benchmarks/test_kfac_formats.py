"""kfac: the formats in which factors and gradients travel, as settings and measured."""

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra torch")

from benchmarks.kfac import rounding
from rules.errors import UserError
from tests.benchmarks.test_kfac import build_task, make_subject


def test_formats_of_what_travels_are_execution_settings(data_root: Path) -> None:
    options = build_task(data_root, "kfac_half_factors=float16", "kfac_gradients=bfloat16").options
    assert (options.factor_format, options.gradient_format) == ("float16", "bfloat16")
    assert build_task(data_root, "kfac_float21=on").options.factor_format == "float21"
    with pytest.raises(UserError, match="factors already travel as float21; fix: leave out"):
        build_task(data_root, "kfac_float21=on", "kfac_half_factors=float16")
    with pytest.raises(
        UserError, match="kfac_gradients=bfloat16: it has no effect without kfac_inv"
    ):
        build_task(data_root, "kfac_inverses=everywhere", "kfac_gradients=bfloat16")
    options = build_task(data_root, "kfac_simulated_ranks=4", "kfac_sums=as_sent").options
    assert (options.simulated_ranks, options.sums) == (4, "as_sent")
    with pytest.raises(UserError, match="kfac_sums=as_sent: it has no effect without kfac_sim"):
        build_task(data_root, "kfac_sums=as_sent")
    with pytest.raises(UserError, match="kfac_simulated_ranks=0: expected one of off, a number"):
        build_task(data_root, "kfac_simulated_ranks=0")


def test_formats_with_fewer_bits_change_the_update_more(
    data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounding, "SETTLE_UPDATES", 1)
    facts = rounding.compare_formats(make_subject(data_root)).facts["roundings"]
    assert len(facts) == 3 * len(rounding.DAMPINGS)
    change = {(each["form"], each["damping"]): each["change"] for each in facts}
    for damping in rounding.DAMPINGS:
        assert 0 < change["float21", damping] < change["bfloat16", damping]
    assert change["bfloat16", 1e-2] < change["bfloat16", 1e-6]
