"""Clips of the sky, which are drawn.

A Cepheid pulsates: it brightens fast and fades slowly, with a period of 4 to 9 frames. Asteroids
pass by along straight lines. The six frames that are known say where all of them go on, and when
the star is bright again.
"""

import numpy as np

ASTEROIDS = 2
SPEED_PIXELS = (0.5, 1.2)  # per frame
PERIOD_FRAMES = (4.0, 9.0)
RISE = 0.3  # of the period
# Of white, of which the sky has a part everywhere: without it, structural similarity would ask
# above all how black the black between the objects is.
SKY = 0.25
FAINTEST, BRIGHTEST = 0.1, 0.75  # of the star
ASTEROID_BRIGHTNESS = (0.45, 0.75)
SPREAD_PIXELS = (1.1, 1.3)  # Gaussian
MARGIN = 0.2  # of the side, round the star


def draw_sky(random: np.random.Generator, frames: int, pixels: int) -> np.ndarray:
    """Draw a clip, uint8 (frames, y, x, 1)."""
    times = np.arange(frames)
    star = random.uniform(MARGIN * pixels, (1 - MARGIN) * pixels, 2)
    places = [np.broadcast_to(star, (frames, 2))]
    lights = [pulsate(times / random.uniform(*PERIOD_FRAMES) + random.random())]
    for _ in range(ASTEROIDS):
        # In the middle of the clip it is somewhere in the frame, so that it is mostly seen.
        middle = random.uniform(MARGIN * pixels, (1 - MARGIN) * pixels, 2)
        angle = random.uniform(0, 2 * np.pi)
        velocity = random.uniform(*SPEED_PIXELS) * np.array([np.cos(angle), np.sin(angle)])
        places.append(middle + (times - frames / 2)[:, None] * velocity)
        lights.append(np.full(frames, random.uniform(*ASTEROID_BRIGHTNESS)))
    spread = random.uniform(*SPREAD_PIXELS)
    axis = np.arange(pixels) + 0.5
    clip = np.full((frames, pixels, pixels), SKY)
    for place, light in zip(places, lights, strict=True):
        down, across = (np.exp(-0.5 * ((axis - place[:, k, None]) / spread) ** 2) for k in (0, 1))
        clip += light[:, None, None] * down[:, :, None] * across[:, None, :]
    return np.rint(255 * np.clip(clip, 0, 1)).astype(np.uint8)[..., None]


def pulsate(phases: np.ndarray) -> np.ndarray:
    """Return the brightness of the star at ``phases`` of its period, any shape."""
    phases = phases % 1
    share = np.where(phases < RISE, phases / RISE, (1 - phases) / (1 - RISE))
    return np.asarray(FAINTEST + (BRIGHTEST - FAINTEST) * share)


def describe_sky() -> dict[str, object]:
    """Return the settings for the manifest; a change in any of them makes another dataset."""
    return {
        "asteroids": ASTEROIDS,
        "speed_pixels": list(SPEED_PIXELS),
        "period_frames": list(PERIOD_FRAMES),
        "rise": RISE,
        "sky": SKY,
        "brightness": [FAINTEST, BRIGHTEST],
        "asteroid_brightness": list(ASTEROID_BRIGHTNESS),
        "spread_pixels": list(SPREAD_PIXELS),
        "margin": MARGIN,
    }
