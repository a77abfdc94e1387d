"""The benchmarks: one folder each, the directory listing is the registry."""
