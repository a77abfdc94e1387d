"""What `cepheid measure speed resnet50` adds: how ranks exchange gradients or share a model."""

from collections.abc import Mapping

from cepheid.reference.measure import exchange, shared_models
from cepheid.reference.measure.speed import Measure

# They need several ranks: start them with torchrun. LARS updates with --set opt_name=lars.
MEASUREMENTS: Mapping[str, Measure] = {
    **exchange.MEASUREMENTS,
    "shared": shared_models.compare_shared_models,
}
ON_REQUEST = tuple(MEASUREMENTS)
