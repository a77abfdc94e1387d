"""The laboratory: how the reference is measured, with tables, figures and records."""
