"""How throughput grows with the number of ranks: what is measured, and its numbers."""
