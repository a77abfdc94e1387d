"""Clips that are drawn: of the sky, and of moving digits.

Sky: a pulsating Cepheid, which brightens fast and fades slowly, with a period of 4 to 9 frames, and
asteroids that pass by along straight lines. The six frames that are known say where all of them go
on, and when the star is bright again.

Digits, after MovingMNIST (Srivastava et al. 2015, arXiv:1502.04681): two move through a frame with
constant velocity and bounce off its edges. MNIST is not distributed with this suite, so digits are
drawn: strokes of a pen along fixed lines, which vary in slant, size, width and place as handwriting
does. Where digits overlap, the brighter one is seen; the published code adds them in 8 bits, where
sums above 255 wrap around.
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
    levels: np.ndarray = np.rint(255 * np.clip(clip, 0, 1)).astype(np.uint8)
    return levels[..., None]


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


# Moving digits ------------------------------------------------------------------------------------

DIGITS = 2
DIGIT_SHARE = 28 / 64  # of the side of the frame
SPEED_SHARE = (2 / 64, 6 / 64)  # of the side, per frame
SLANT = 0.25  # largest, across over down
SHRINKING = 0.2  # largest
PEN_SHARE = (0.05, 0.09)  # half the width, of the digit's side
WOBBLE = 0.04  # of the corners of strokes
POINTS = 12  # on each line between two corners

# Corners of strokes in a square (across, down) of side 1.
STROKES: tuple[tuple[tuple[tuple[float, float], ...], ...], ...] = (
    (((0.5, 0.1), (0.28, 0.25), (0.25, 0.6), (0.4, 0.88), (0.6, 0.88), (0.75, 0.6), (0.72, 0.25),
      (0.5, 0.1)),),
    (((0.35, 0.28), (0.52, 0.1), (0.52, 0.9)),),
    (((0.27, 0.3), (0.4, 0.12), (0.62, 0.12), (0.72, 0.32), (0.26, 0.88), (0.76, 0.88)),),
    (((0.28, 0.15), (0.7, 0.15), (0.48, 0.45), (0.7, 0.58), (0.68, 0.8), (0.48, 0.9),
      (0.27, 0.8)),),
    (((0.6, 0.9), (0.6, 0.1), (0.24, 0.64), (0.78, 0.64)),),
    (((0.7, 0.12), (0.34, 0.12), (0.32, 0.45), (0.58, 0.42), (0.72, 0.6), (0.64, 0.84),
      (0.3, 0.88)),),
    (((0.62, 0.1), (0.36, 0.4), (0.3, 0.7), (0.44, 0.9), (0.64, 0.86), (0.68, 0.64), (0.5, 0.52),
      (0.33, 0.64)),),
    (((0.26, 0.12), (0.74, 0.12), (0.44, 0.9)),),
    (((0.5, 0.48), (0.32, 0.32), (0.5, 0.12), (0.68, 0.32), (0.5, 0.48), (0.28, 0.7), (0.5, 0.9),
      (0.72, 0.7), (0.5, 0.48)),),
    (((0.68, 0.36), (0.5, 0.48), (0.33, 0.34), (0.48, 0.12), (0.66, 0.2), (0.68, 0.36),
      (0.6, 0.9)),),
)  # fmt: skip


def draw_digits(random: np.random.Generator, frames: int, pixels: int) -> np.ndarray:
    """Draw a clip of two different digits, uint8 (frames, y, x, 1)."""
    clip = np.zeros((frames, pixels, pixels), np.uint8)
    side = round(DIGIT_SHARE * pixels)
    for digit in random.choice(len(STROKES), DIGITS, replace=False):
        image = draw_digit(random, int(digit), side)
        places = bounce(random, frames, pixels - side, pixels)
        for frame, (down, across) in zip(clip, places, strict=True):
            region = frame[down : down + side, across : across + side]
            np.maximum(region, image, out=region)
    return clip[..., None]


def draw_digit(random: np.random.Generator, digit: int, side: int) -> np.ndarray:
    """Draw a digit as a pen does, uint8 (side, side)."""
    slant = random.uniform(-SLANT, SLANT)
    scale = 1 - random.uniform(0, SHRINKING, 2)
    pen = random.uniform(*PEN_SHARE)
    axis = (np.arange(side) + 0.5) / side
    nearest = np.full((side, side), np.inf)
    for stroke in STROKES[digit]:
        corners = np.array(stroke) - 0.5 + random.normal(0, WOBBLE / 2, (len(stroke), 2))
        steps = np.linspace(0, len(corners) - 1, POINTS * (len(corners) - 1) + 1)
        across, down = (
            np.interp(steps, np.arange(len(corners)), corners[:, k]) * scale[k] for k in (0, 1)
        )
        across = across - slant * down + 0.5
        distances = (axis[None, :, None] - across) ** 2 + (axis[:, None, None] - down - 0.5) ** 2
        nearest = np.minimum(nearest, np.sqrt(distances.min(axis=-1)))
    ink = np.clip((pen - nearest) * side + 0.5, 0, 1)
    return np.rint(255 * ink).astype(np.uint8)


def bounce(random: np.random.Generator, frames: int, free: int, pixels: int) -> np.ndarray:
    """Return the upper left corners of a digit that has ``free`` pixels to move, (frames, 2)."""
    start = random.uniform(0, free, 2)
    angle, speed = random.uniform(0, 2 * np.pi), random.uniform(*SPEED_SHARE) * pixels
    travelled = start + np.arange(frames)[:, None] * speed * np.array(
        [np.sin(angle), np.cos(angle)]
    )
    folded = travelled % (2 * free)
    return np.rint(np.where(folded > free, 2 * free - folded, folded)).astype(int)


def describe_digits() -> dict[str, object]:
    """Return the settings for the manifest; a change in any of them makes another dataset."""
    return {
        "digits": DIGITS,
        "digit_share": DIGIT_SHARE,
        "speed_share": list(SPEED_SHARE),
        "slant": SLANT,
        "shrinking": SHRINKING,
        "pen_share": list(PEN_SHARE),
        "wobble": WOBBLE,
        "strokes": STROKES,
    }
