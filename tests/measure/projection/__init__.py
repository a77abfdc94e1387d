"""Tests of the projection: the model, published times, and the commands."""
