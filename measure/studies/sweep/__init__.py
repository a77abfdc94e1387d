"""Times and quality by batch size or number of images, as papers report them."""
