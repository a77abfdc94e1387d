"""How ranks find each other, notice a lost one, and share memory on one machine."""
