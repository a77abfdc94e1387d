"""What benchmarks that translate share on torch: their task and the beam search."""
