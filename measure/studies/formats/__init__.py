"""How fast a disk reads images in each packed format."""
