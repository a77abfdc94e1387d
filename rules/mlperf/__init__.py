"""Rule files of mlcommons, read from an installed mlperf-logging: no code of theirs is imported."""
