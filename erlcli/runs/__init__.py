"""The run directory: where everything is, how it is written and read. Standard library only."""
