"""The figure of `cepheid measure scaling`: rates by ranks, and where the time of a step goes."""

from collections.abc import Sequence
from pathlib import Path

from cepheid.measure.engine.drawing import OURS, REPORTED, draw_figure
from cepheid.measure.studies.scaling.points import INDEPENDENT, SHARES, TOGETHER, Point, spread

SYNTHETIC, CEILING = "C1", "C3"
COLOURS = ("C4", OURS, "C2", CEILING, REPORTED)  # of the shares, in their order


def draw_scaling(path: Path, title: str, points: Sequence[Point]) -> None:
    """Draw rates against ideal ones on the left, shares of a step on the right.

    Raises UserError where the file cannot be written, ModuleNotFoundError without matplotlib.
    """
    with draw_figure(path, columns=2) as (figure, (left, right)):
        sizes = [point.ranks for point in points]
        kinds = points[0].inputs
        for kind, colour in zip(("real", "synthetic"), (OURS, SYNTHETIC), strict=True):
            if kind in kinds:
                rates = [spread(point.rates(TOGETHER, kind)) for point in points]
                below = [rate.median - rate.first_quartile for rate in rates]
                above = [rate.third_quartile - rate.median for rate in rates]
                left.errorbar(
                    sizes,
                    [rate.median for rate in rates],
                    yerr=[below, above],
                    fmt="o-",
                    capsize=3,
                    color=colour,
                    label=f"{kind} data",
                )
        bounded = [point for point in points if point.ceiling()]
        if bounded:
            values = [spread(point.rates(INDEPENDENT, kinds[-1])).median for point in bounded]
            left.plot(
                [point.ranks for point in bounded],
                values,
                "^",
                color=CEILING,
                label="independent ranks",
            )
        one = spread(points[0].rates(TOGETHER, kinds[0])).median / points[0].ranks
        left.plot(sizes, [one * size for size in sizes], ":", color=REPORTED, label="ideal")
        left.set_ylabel("samples per second")
        left.set_ylim(bottom=0)
        left.set_title("throughput: medians, middle half of the turns")
        left.legend()
        names = [str(size) for size in sizes]
        base = [0.0] * len(points)
        for name, colour in zip((*SHARES, "other"), COLOURS, strict=True):
            heights = [100 * point.shares[name] for point in points]
            right.bar(names, heights, bottom=base, color=colour, label=name, width=0.6)
            base = [low + height for low, height in zip(base, heights, strict=True)]
        right.set_ylabel("% of a step")
        right.set_title("a profiled step, mean of the ranks")
        right.legend()
        left.set_xticks(sizes)
        for axes in (left, right):
            axes.set_xlabel("ranks")
        figure.suptitle(title)
