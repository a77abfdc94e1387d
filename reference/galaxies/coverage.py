"""The regions in which a share of all true shapes must lie."""

import math

# Squared radii that hold 68% and 95% of a bivariate normal: χ² with 2 degrees of freedom, whose
# distribution function is 1 − exp(−r²/2).
RADIUS_SQUARED = {
    "coverage_68": -2 * math.log(1 - 0.68),
    "coverage_95": -2 * math.log(1 - 0.95),
}
