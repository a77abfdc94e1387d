"""Datasets: what draws or reads them, keeps them, and brings them to a training."""
