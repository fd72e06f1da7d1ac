"""Processes and the one training loop."""
