"""What `cepheid measure costs transformer` adds: refreshed factors and bytes sent, as for kfac."""

from cepheid.measure.studies.costs.kfac import PreconditionerParts

PARTS = PreconditionerParts()
