"""Image files of any dataset: what they hold, how they are packed, and how threads decode them."""
