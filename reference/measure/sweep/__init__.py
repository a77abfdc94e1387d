"""A sweep over batch sizes: the cosmology paper's protocol, in resumable jobs."""
