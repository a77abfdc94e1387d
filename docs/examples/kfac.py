"""K-FAC in front of SGD, on a network and a training loop of your own: two lines more."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from cepheid.second_order import KFAC, Options

points = torch.randn(4096, 2, generator=torch.Generator().manual_seed(0))
labels = ((points[:, 0] * 3).sin() > points[:, 1]).long()  # two classes along a wave


def train(*, second_order: bool) -> float:
    """Return the loss after three passes."""
    torch.manual_seed(1)
    network = nn.Sequential(
        nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)
    )
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    kfac = KFAC(network, Options(damping=1e-2, rescaling="kl_clip")) if second_order else None
    for _ in range(3):
        for inputs, targets in zip(points.split(64), labels.split(64), strict=True):
            optimizer.zero_grad()
            cross_entropy(network(inputs), targets).backward()
            if kfac:
                kfac.step(learning_rate=0.1)
            optimizer.step()
    return cross_entropy(network(points), labels).item()


print(f"loss with SGD {train(second_order=False):.3f}, with K-FAC {train(second_order=True):.3f}")
