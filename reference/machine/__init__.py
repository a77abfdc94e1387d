"""Describe and observe what runs: ranks, processors, accelerators, memory, energy."""
