"""Checks across everything that is judged together: no two runs are the same run (T19, T23)."""
