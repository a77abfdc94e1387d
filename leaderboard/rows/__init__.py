"""Entries, one for each result, and how they are written: CSV, JSON, tables."""
