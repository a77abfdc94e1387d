"""The shape of a galaxy with its uncertainty, by a network that trains in a minute or two."""

import sys

import torch
from torch.utils.data import DataLoader

import cepheid
from cepheid.benchmarks.galaxy_shape.model import negative_log_likelihood

PASSES = int(sys.argv[1]) if len(sys.argv) > 1 else 3
torch.manual_seed(1)
train = cepheid.datasets.load("galaxy_shape", split="train")
network = cepheid.models.load("galaxy_shape", weights="initial")
optimizer = torch.optim.Adam(network.parameters())
loader = DataLoader(train, batch_size=32, shuffle=True)
rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=PASSES * len(loader))
for number in range(PASSES):
    for batch in loader:
        shapes = torch.stack([batch["e1"], batch["e2"]], dim=1)  # (32, 2)
        mean, scale = network(batch["stamps"])
        loss = negative_log_likelihood(mean, scale, shapes).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        optimizer.step()
        rate.step()
    print(f"pass {number + 1}: loss {loss.item():.2f} nats")

galaxy = cepheid.datasets.load("galaxy_shape", split="evaluation")[3]
with torch.no_grad():  # (1, 2) and (1, 2, 2): the normal distribution of e1 and e2
    mean, scale = network.eval()(torch.from_numpy(galaxy["stamps"])[None])
deviation = (scale @ scale.mT)[0].diagonal().sqrt()
for name, value, error in zip(("e1", "e2"), mean[0].tolist(), deviation.tolist(), strict=True):
    print(f"{name}: {value:+.3f} ± {error:.3f}   truth {galaxy[name]:+.3f}")
