"""What `cepheid measure costs transformer` adds: refreshed factors and bytes sent, as for kfac."""

from cepheid.benchmarks.kfac.costs import PreconditionerParts

PARTS = PreconditionerParts()
