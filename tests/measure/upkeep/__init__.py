"""Tests of what keeps evidence true."""
