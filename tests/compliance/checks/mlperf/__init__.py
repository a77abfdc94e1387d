"""Tests of what mlcommons asks of a submission beside its logs."""
