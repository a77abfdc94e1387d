"""What the pages show beside rows: records, history, devices, numbers that others reported."""
