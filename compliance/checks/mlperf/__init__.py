"""Checks of the published rounds of MLPerf."""
