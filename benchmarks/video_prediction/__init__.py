"""Video prediction with FutureGAN, adversarial networks that grow in space."""
