"""A session of `cepheid run`: from a request to a folder of runs."""
