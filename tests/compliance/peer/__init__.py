"""Our verdicts beside those of the peer, mlcommons' ``mlperf_logging``. It executes code and takes
minutes: ``changed`` and ``published`` ask it by hand and write tables into compliance/README.md."""
