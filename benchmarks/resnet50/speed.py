"""The measurements that `cepheid measure speed resnet50` adds: how ranks exchange gradients."""

from collections.abc import Mapping

from reference.measure import exchange
from reference.measure.speed import Measure

# Both need several ranks: start them with torchrun. LARS updates with --set opt_name=lars.
MEASUREMENTS: Mapping[str, Measure] = exchange.MEASUREMENTS
ON_REQUEST = tuple(MEASUREMENTS)
