"""The guard of the house: what ``tests/house.toml`` allows, measured without importing anything."""
