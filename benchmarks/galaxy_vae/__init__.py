"""Galaxy VAE: an autoencoder and a flow that learn the distribution of galaxy images."""
