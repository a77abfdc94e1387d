"""Our verdicts beside those of the peer, mlcommons' ``mlperf_logging``."""
