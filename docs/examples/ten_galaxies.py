"""Ten galaxies that nobody has observed, from the published weights."""

import cepheid

model = cepheid.models.load("galaxy_generation", scale="full")
galaxies = model.generate(10, seed=1)  # (10, 6, 64, 64): bands ugrizy, in units of the sky noise
for number, flux in enumerate(galaxies.sum(dim=(2, 3)).tolist()):
    bands = "  ".join(f"{band} {value:7.0f}" for band, value in zip("ugrizy", flux, strict=True))
    print(f"galaxy {number}: {bands}")
