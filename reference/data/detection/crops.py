"""Random parts of images, as SSD is trained with, and what they do to boxes.

A part is drawn in one of seven modes: the whole image, a part that overlaps every box by more than
0.1, 0.3, 0.5, 0.7 or 0.9 (intersection over union of part and box), or any part (Liu et al. 2016,
arXiv:1512.02325, section 2.2). Its sides are uniform from 0.3 to 1 of the image's, and neither is
more than twice the other. A part without the centre of any box is not used. After ``most_tries``
parts that cannot be used another mode is drawn, as in the reference of MLPerf 0.6.

All boxes are left, top, right, bottom in shares of the image's sides. The parts of all images of a
batch are drawn together.
"""

import numpy as np

from cepheid.reference.data.random_streams import draw_rows

LEAST_OVERLAPS = np.array([-np.inf, 0.1, 0.3, 0.5, 0.7, 0.9, -np.inf])
"""By mode. Mode 0 is the whole image, and the last one any part."""
SMALLEST_SIDE = 0.3
LARGEST_ASPECT = 2.0
WHOLE = (0.0, 0.0, 1.0, 1.0)


def draw_parts(
    boxes: np.ndarray, labels: np.ndarray, seed: int, first: int, most_tries: int = 1
) -> np.ndarray:
    """Draw a part of each image, float64 (n, 4).

    ``boxes`` (n, most, 4) and ``labels`` (n, most), 0 where there is no box, belong to the ``n``
    positions of the stream of samples from ``first`` on, of which the parts are a function.
    """
    is_used = (labels > 0).any(axis=0)
    boxes, labels = boxes[:, is_used], labels[:, is_used]
    parts = np.tile(WHOLE, (len(boxes), 1))
    undecided, positions = np.arange(len(boxes)), range(first, first + len(boxes))
    attempt = 0
    while undecided.size:
        drawn = draw_rows(seed, "part", positions, 1 + 4 * most_tries, attempt)[undecided]
        modes = (drawn[:, 0] * len(LEAST_OVERLAPS)).astype(int)
        numbers = drawn[:, 1:].reshape(len(undecided), most_tries, 4)
        sides = SMALLEST_SIDE + (1 - SMALLEST_SIDE) * numbers[..., :2]
        corners = (1 - sides) * numbers[..., 2:]
        tried = np.concatenate([corners, corners + sides], axis=-1)
        fits = _find_usable(tried, boxes[undecided], labels[undecided], LEAST_OVERLAPS[modes])
        is_found = fits.any(axis=1) & (modes > 0)
        chosen = tried[np.arange(len(undecided)), fits.argmax(axis=1)]
        parts[undecided[is_found]] = chosen[is_found]
        undecided = undecided[~is_found & (modes > 0)]
        attempt += 1
    return parts


def cut_boxes(
    boxes: np.ndarray, labels: np.ndarray, parts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return boxes (n, most, 4) in shares of their parts (n, 4), and their labels (n, most).

    Boxes whose centre lies outside are dropped, the others are cut. Nothing happens to the boxes of
    a whole image.
    """
    is_kept = (labels > 0) & _find_centres_inside(boxes, parts[:, None])[..., 0]
    corners, sides = parts[:, :2], parts[:, 2:] - parts[:, :2]
    low, high = np.tile(parts[:, :2], 2), np.tile(parts[:, 2:], 2)
    cut = np.clip(boxes, low[:, None], high[:, None])
    cut = (cut - np.tile(corners, 2)[:, None]) / np.tile(sides, 2)[:, None]
    is_whole = np.all(parts == WHOLE, axis=1)[:, None]
    labels = np.where(is_kept | is_whole, labels, 0)
    cut = np.where(is_whole[..., None], boxes, cut) * (labels > 0)[..., None]
    return cut.astype(boxes.dtype), labels


def _find_usable(
    parts: np.ndarray, boxes: np.ndarray, labels: np.ndarray, least_overlaps: np.ndarray
) -> np.ndarray:
    """Return which of ``parts`` (n, tries, 4) can be used, bool (n, tries)."""
    sides = parts[..., 2:] - parts[..., :2]
    aspects = sides[..., 0] / sides[..., 1]
    is_right = (aspects >= 1 / LARGEST_ASPECT) & (aspects <= LARGEST_ASPECT)
    is_box = (labels > 0)[:, :, None]
    has_centre = _find_centres_inside(boxes, parts) & is_box
    is_met = (_compute_overlaps(boxes, parts) > least_overlaps[:, None, None]) | ~is_box
    return np.asarray(is_right & has_centre.any(axis=1) & is_met.all(axis=1))


def _find_centres_inside(boxes: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """Return whether the centre of each box lies in each part, bool (n, most, tries)."""
    centres = ((boxes[..., :2] + boxes[..., 2:]) / 2)[:, :, None]
    parts = parts[:, None]
    is_inside = (centres > parts[..., :2]) & (centres < parts[..., 2:])
    return np.asarray(is_inside.all(axis=-1))


def _compute_overlaps(boxes: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """Return the intersection over union of each box with each part, (n, most, tries)."""
    one, other = boxes[:, :, None], parts[:, None]
    common = np.minimum(one[..., 2:], other[..., 2:]) - np.maximum(one[..., :2], other[..., :2])
    shared = np.maximum(common, 0).prod(axis=-1)
    areas = (one[..., 2:] - one[..., :2]).prod(axis=-1)
    areas = areas + (other[..., 2:] - other[..., :2]).prod(axis=-1)
    return np.asarray(shared / (areas - shared))
