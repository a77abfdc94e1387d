"""The kinds of devices that torch computes on, and how values get to them and back."""
