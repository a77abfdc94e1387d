"""What it costs and saves that ranks share gradients, models and images."""
