"""A picture for people: radiographs with their findings, ROC curves, and areas with intervals."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cepheid.reference.data.radiographs import FINDINGS, Radiographs
from cepheid.reference.data.radiographs.auroc import bootstrap_intervals, compute_auroc, trace_curve

SHOWN = 8  # radiographs
MOST_FINDINGS = 3  # of one that is shown
COLUMNS = 4
COLOURS = 7  # of the style


def choose_images(truth: np.ndarray) -> np.ndarray:
    """Return evaluation images that together have many findings, and one without, (SHOWN,)."""
    chosen: list[int] = []
    shown = np.zeros(truth.shape[1])
    has_findings = truth.sum(axis=1) > 0
    for _ in range(min(SHOWN, len(truth)) - 1):
        gain = (truth / (1 + 4 * shown)).sum(axis=1) / np.maximum(1, truth.sum(axis=1)) ** 0.5
        gain[chosen] = -1
        gain[truth.sum(axis=1) > MOST_FINDINGS] *= 0.1
        chosen.append(int(gain.argmax()))
        shown += truth[chosen[-1]]
    left = [k for k in range(len(truth)) if k not in chosen]
    plain = [k for k in left if not has_findings[k]]
    return np.array([*chosen, (plain or left)[0]])


def draw_figure(images: Radiographs, scores: np.ndarray, truth: np.ndarray) -> Figure:
    """Return the figure of a run; ``scores`` and ``truth`` are (n, 14)."""
    figure = Figure(figsize=(12.4, 11.2), layout="constrained")
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=(1.25, 1))[:, 0]
    above.suptitle(
        "Radiographs of the evaluation set: findings, and what the network says (first three)"
    )
    grid = above.subplots(SHOWN // COLUMNS, COLUMNS)
    shares = 1 / (1 + np.exp(-scores.astype(float)))
    for axes, number in zip(grid.flat, choose_images(truth), strict=False):
        _draw_image(axes, images, int(number), truth[number], shares[number])
    curves, bars = below.subplots(1, 2, width_ratios=(1, 1.5))
    _draw_curves(curves, scores, truth)
    _draw_areas(bars, scores, truth)
    return figure


def _draw_image(
    axes: Axes, images: Radiographs, number: int, truth: np.ndarray, shares: np.ndarray
) -> None:
    axes.imshow(images.files.decode(images.train_samples + number)[:, :, 0], cmap="gray")
    axes.set_axis_off()
    found = [_name(k) for k in np.flatnonzero(truth).tolist()]
    axes.set_title(",\n".join(found) or "no finding")
    said = [f"{_name(k)} {100 * shares[k]:.0f}%" for k in np.argsort(-shares)[:3].tolist()]
    axes.text(0.5, -0.02, "\n".join(said), ha="center", va="top", transform=axes.transAxes)


def _draw_curves(axes: Axes, scores: np.ndarray, truth: np.ndarray) -> None:
    styles = [(f"C{colour}", style) for style in ("-", "--") for colour in range(COLOURS)]
    for k, (colour, style) in enumerate(styles):
        false_rate, true_rate = trace_curve(scores[:, k], truth[:, k])
        axes.plot(false_rate, true_rate, style, color=colour, lw=1.1, label=_name(k))
    axes.plot([0, 1], [0, 1], ":", color="C5", lw=1)
    axes.set(xlabel="false positive rate", ylabel="true positive rate", title="ROC curves")
    axes.set_aspect("equal")
    axes.legend(ncols=2, loc="lower right", frameon=False)


def _draw_areas(axes: Axes, scores: np.ndarray, truth: np.ndarray) -> None:
    areas, (lows, highs) = compute_auroc(scores, truth), bootstrap_intervals(scores, truth)
    rows = np.arange(len(FINDINGS))[::-1]
    axes.barh(rows, areas, color="C0", alpha=0.5)
    intervals = [np.maximum(0, areas - lows), np.maximum(0, highs - areas)]
    axes.errorbar(areas, rows, xerr=intervals, fmt="none", ecolor="C6", capsize=2.5)
    axes.axvline(areas.mean(), color="C4", lw=1.2)
    counts = truth.sum(axis=0).astype(int)
    axes.set_yticks(rows, [f"{_name(k)} ({counts[k]})" for k in range(len(FINDINGS))])
    axes.set_xlim(0.4, 1)
    axes.set_xlabel("area under the ROC curve")
    axes.set_title(f"Areas with 95% bootstrap intervals; mean {areas.mean():.3f} (red)")


def _name(finding: int) -> str:
    return FINDINGS[finding].replace("_", " ").lower()
