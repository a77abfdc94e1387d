"""What the galaxy benchmarks share: data, schedule, optimizer, shape metrics and reports."""
