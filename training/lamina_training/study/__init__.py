"""Studies: one question, several ways to train, many seeds, and a table that can be made again."""
