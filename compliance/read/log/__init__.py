"""Read one run log: bytes to records, within bounds."""
