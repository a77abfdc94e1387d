"""Train on PyTorch: tasks, ranks, precision, compilation, data parallelism."""
