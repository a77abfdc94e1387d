"""The middle of stamps, and stamps in the eight orientations of the square."""

import numpy as np


def crop_middle(images: np.ndarray, pixels: int) -> np.ndarray:
    """Return the inner ``pixels`` × ``pixels`` of images (…, y, x), as a view.

    ``pixels`` and the width of the images are both even or both odd, so that their middle stays in
    the middle.
    """
    first = (images.shape[-1] - pixels) // 2
    inside = slice(first, first + pixels)
    return images[..., inside, inside]


def reorient(
    stamps: np.ndarray, labels: np.ndarray, rows: np.ndarray, orientations: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return copies of ``rows`` of the data in one of the eight orientations of the square each.

    Bit 0 of an orientation flips x, bit 1 flips y (either changes the sign of e2), bit 2 then
    transposes (which changes the sign of e1); the labels (e1, e2) change accordingly. ``stamps``
    are (n, bands, y, x), ``labels`` (n, 2), ``rows`` and ``orientations`` (m,).
    """
    flip_x, flip_y, transpose = ((orientations >> bit) & 1 for bit in range(3))
    signs = np.stack([1 - 2 * transpose, 1 - 2 * (flip_x ^ flip_y)], axis=1)
    return reorient_stamps(stamps, rows, orientations), labels[rows] * signs.astype(labels.dtype)


def reorient_stamps(stamps: np.ndarray, rows: np.ndarray, orientations: np.ndarray) -> np.ndarray:
    """Return the stamps of ``reorient``, (m, bands, y, x)."""
    copies = np.empty((len(rows), *stamps.shape[1:]), stamps.dtype)
    for target, row, orientation in zip(copies, rows, orientations, strict=True):
        stamp = stamps[row]  # a view: each pixel is read and written once
        if orientation & 1:
            stamp = stamp[:, :, ::-1]
        if orientation & 2:
            stamp = stamp[:, ::-1]
        if orientation & 4:
            stamp = stamp.swapaxes(1, 2)
        target[...] = stamp
    return copies
