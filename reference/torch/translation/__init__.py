"""What benchmarks that translate share on torch: sentences, beam search and variants."""
