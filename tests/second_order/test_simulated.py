"""Ranks simulated on one: shares are rounded before they are added, and maybe their sums."""

import pytest
import torch
from torch import nn

from cepheid.second_order import KFAC, Options
from cepheid.second_order.options import UseError
from cepheid.second_order.simulated import round_to

INPUTS = torch.arange(24.0).view(8, 3).sub(11.3).div(7)


def compute_factor(**options: object) -> torch.Tensor:
    """Return the factor of the inputs of a linear layer after a step."""
    torch.manual_seed(0)
    network = nn.Linear(3, 2, bias=False)
    kfac = KFAC(network, Options(**options))  # type: ignore[arg-type]
    network(INPUTS).square().sum(1).mean().backward()
    kfac.step()
    return kfac.layers[0].averages[0]


def list_shares(ranks: int) -> list[torch.Tensor]:
    return [round_to(rows.T @ rows / 8, "bfloat16") for rows in INPUTS.tensor_split(ranks)]


def test_nothing_changes_in_float32() -> None:
    assert torch.allclose(compute_factor(simulated_ranks=4), compute_factor(), rtol=1e-6)


def test_each_share_is_rounded_before_it_is_added() -> None:
    found = compute_factor(simulated_ranks=4, factor_format="bfloat16")
    assert torch.equal(found, torch.stack(list_shares(4)).sum(0))
    assert not torch.equal(found, round_to(compute_factor(), "bfloat16"))


def test_sums_are_rounded_on_their_way_round_a_ring_and_within_nodes_first() -> None:
    shares = list_shares(4)
    ring = shares[0]
    for share in shares[1:]:
        ring = round_to(ring + share, "bfloat16")
    nodes = [round_to(shares[place] + shares[place + 1], "bfloat16") for place in (0, 2)]
    found = compute_factor(simulated_ranks=4, factor_format="bfloat16", sums="as_sent")
    assert torch.equal(found, ring)
    found = compute_factor(
        simulated_ranks=4, factor_format="bfloat16", sums="as_sent", ranks_per_node=2
    )
    assert torch.equal(found, round_to(nodes[0] + nodes[1], "bfloat16"))


def test_a_factor_that_float16_cannot_hold_is_named(caplog: pytest.LogCaptureFixture) -> None:
    network = nn.Linear(3, 2)
    kfac = KFAC(network, Options(simulated_ranks=2, factor_format="float16"))
    network(1000 * INPUTS).sum().backward()
    kfac.step()
    assert "float16 holds at most 65,504" in caplog.text


def test_more_ranks_than_samples() -> None:
    with pytest.raises(UseError, match="8 samples cannot be shared among 9 simulated ranks"):
        compute_factor(simulated_ranks=9)


def test_positions_of_one_dimension_are_shared_out_too() -> None:
    found = []
    for ranks in (0, 4):
        torch.manual_seed(0)
        network = nn.Embedding(5, 3)
        kfac = KFAC(network, Options(simulated_ranks=ranks))
        kfac.weigh({"": torch.full((8,), 0.5)})
        network(torch.arange(8) % 5).square().sum(1).mean().backward()
        kfac.step()
        found.append(kfac.layers[0].averages)
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-8)
