"""The mathematics and contracts of the tool: imports nothing above it."""
