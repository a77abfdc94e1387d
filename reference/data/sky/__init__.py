"""What datasets and pictures of the sky share, without the galaxies themselves."""
