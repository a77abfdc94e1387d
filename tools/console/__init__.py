"""What the commands share: options, progress, tables, and files that belong to a user."""
