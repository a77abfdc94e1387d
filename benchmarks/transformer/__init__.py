"""Translation from English to German with a Transformer."""
