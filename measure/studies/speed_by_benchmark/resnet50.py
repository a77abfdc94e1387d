"""What `cepheid measure speed resnet50` adds: how ranks exchange gradients or share a model."""

from collections.abc import Mapping

from cepheid.measure.engine.subject import Measure
from cepheid.measure.studies.sharing import exchange, shared_models

# They need several ranks: start them with torchrun. LARS updates with --set opt_name=lars.
MEASUREMENTS: Mapping[str, Measure] = {
    **exchange.MEASUREMENTS,
    "shared": shared_models.compare_shared_models,
}
ON_REQUEST = tuple(MEASUREMENTS)
