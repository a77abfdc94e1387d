"""What the runs of a benchmark can show: `cepheid measure resolution`."""
