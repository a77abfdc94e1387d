"""Read run logs, power logs, manifests and submission folders. Nothing here judges."""
