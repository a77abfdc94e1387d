"""The check that two networks have the same gradients."""

from collections.abc import Iterable

from torch import Tensor, nn


def assert_same_gradients(network: nn.Module, expected: Iterable[Tensor | None]) -> None:
    """Compare the gradients of a network with those that are expected, in its order and shapes.

    An activation that rounding moves across zero takes another slope: 1e-3 here and there.
    """
    for gradient, (name, parameter) in zip(expected, network.named_parameters(), strict=True):
        assert gradient is not None, name
        assert parameter.grad is not None, name
        difference = ((parameter.grad - gradient).norm() / gradient.norm()).item()
        assert difference < 0.01, f"{name}: {difference:.1e}"
