"""The shape of a galaxy with its uncertainty: python posterior.py [PASSES]; 3 take 40 s."""

import sys
import time

import torch
from torch.utils.data import DataLoader, Subset

import cepheid
from cepheid.benchmarks.galaxy_shape.model import negative_log_likelihood

PASSES, GALAXIES = int(sys.argv[1]) if len(sys.argv) > 1 else 3, 2048
torch.manual_seed(1)
print("1. The galaxies: read if they are there, else drawn, once, in a minute or two", flush=True)
every = cepheid.datasets.load("galaxy_shape", split="train")
train = Subset(every, range(min(GALAXIES, len(every))))
print(f"2. {PASSES} passes of a new network over {len(train):,} galaxies", flush=True)
network = cepheid.models.load("galaxy_shape", weights="initial")
optimizer = torch.optim.Adam(network.parameters())
loader = DataLoader(train, batch_size=32, shuffle=True)
steps, started = PASSES * len(loader), time.monotonic()
rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
for number in range(PASSES):
    for step, batch in enumerate(loader, number * len(loader) + 1):
        shapes = torch.stack([batch["e1"], batch["e2"]], dim=1)  # (32, 2)
        mean, scale = network(batch["stamps"])
        loss = negative_log_likelihood(mean, scale, shapes).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        optimizer.step()
        rate.step()
        if step % 16 == 0 or step == steps:
            left = (time.monotonic() - started) * (steps / step - 1)
            said = f"step {step} of {steps}: loss {loss.item():5.2f} nats, about {left:.0f} s to go"
            print(f"   {said}", flush=True)

print("3. A galaxy that it has not seen:")
galaxy = cepheid.datasets.load("galaxy_shape", split="evaluation")[3]
with torch.no_grad():  # (1, 2) and (1, 2, 2): the normal distribution of e1 and e2
    mean, scale = network.eval()(torch.from_numpy(galaxy["stamps"])[None])
deviation = (scale @ scale.mT)[0].diagonal().sqrt()
for name, value, error in zip(("e1", "e2"), mean[0].tolist(), deviation.tolist(), strict=True):
    print(f"   {name}: {value:+.3f} ± {error:.3f}   truth {galaxy[name]:+.3f}")
