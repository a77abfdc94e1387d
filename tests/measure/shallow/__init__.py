"""Tests of the shallow baselines."""
