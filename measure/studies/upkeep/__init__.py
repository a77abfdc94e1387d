"""Keeping evidence true: what is stale or missing, and what a seed gives when it is repeated."""
