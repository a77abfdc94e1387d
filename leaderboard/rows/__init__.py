"""Leaderboard rows, one for each result, and how they are written: CSV, JSON, tables."""

from cepheid.leaderboard.rows.data import describe_row, write_csv, write_json
from cepheid.leaderboard.rows.row import Row, group_rows, list_rows, make_row, place_in_table
from cepheid.leaderboard.rows.tables import write_markdown, write_table

__all__ = [
    "Row",
    "describe_row",
    "group_rows",
    "list_rows",
    "make_row",
    "place_in_table",
    "write_csv",
    "write_json",
    "write_markdown",
    "write_table",
]
