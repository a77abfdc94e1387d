"""Tests of `cepheid round`."""
