"""What everybody agrees on: definitions, events, rounds, schemas. No deep-learning framework."""
