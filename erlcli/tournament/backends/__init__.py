"""Where slices run: one small interface, and who implements it."""
