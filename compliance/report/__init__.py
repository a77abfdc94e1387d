"""Show findings to people and programs: text, JSON, SARIF, GitHub annotations."""
