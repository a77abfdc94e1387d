"""Optimizers and schedules that torch does not have."""
