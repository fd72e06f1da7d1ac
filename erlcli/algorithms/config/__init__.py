"""The recipe sections of the algorithms.

They stand apart from the algorithms so that they don't import torch: a wrong key is reported at once, and the
supervisor, which validates every recipe, stays a small process.
"""
