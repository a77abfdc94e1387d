"""Pairs of sentences as a trainer takes them: what is stored, and the order of batches."""
