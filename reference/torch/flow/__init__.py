"""Normalising flows over vectors: a masked autoregressive flow and fast samples of it."""
