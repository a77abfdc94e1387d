"""Quantiles of Student's t distribution."""

from functools import cache

# The one-sided 95% quantiles of rule T21, for 1, 2, … 30 degrees of freedom, as the rule prints
# them. They are numbers of the rule, and checking a submission need not wait 0.3 s for scipy. With
# more degrees the last value is used, which is 0.05 above that of infinitely many.
ONE_SIDED_95 = (
    6.3138, 2.9200, 2.3534, 2.1318, 2.0150, 1.9432, 1.8946, 1.8595, 1.8331, 1.8125,
    1.7959, 1.7823, 1.7709, 1.7613, 1.7531, 1.7459, 1.7396, 1.7341, 1.7291, 1.7247,
    1.7207, 1.7171, 1.7139, 1.7109, 1.7081, 1.7056, 1.7033, 1.7011, 1.6991, 1.6973,
)  # fmt: skip


def one_sided_quantile(degrees: int) -> float:
    """Return the one-sided 95% quantile that rule T21 uses."""
    return ONE_SIDED_95[min(degrees, len(ONE_SIDED_95)) - 1]


@cache
def two_sided_quantile(degrees: int, confidence: float = 0.95) -> float:
    """Return the t that Student's distribution does not exceed in either direction."""
    from scipy.special import stdtrit  # here: only a score needs scipy

    return float(stdtrit(degrees, (1 + confidence) / 2))
