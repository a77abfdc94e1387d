"""Leaderboard rows, one for each result, and how they are written: CSV, JSON, tables."""

from compliance.leaderboard.data import as_csv, as_json, row_object
from compliance.leaderboard.row import Row, groups, place_in_table, row_of, rows
from compliance.leaderboard.tables import as_markdown, as_table

__all__ = [
    "Row",
    "as_csv",
    "as_json",
    "as_markdown",
    "as_table",
    "groups",
    "place_in_table",
    "row_object",
    "row_of",
    "rows",
]
