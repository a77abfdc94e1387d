"""Describe and observe the machine: processors, accelerators, memory, energy."""
