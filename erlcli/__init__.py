"""erl: train, watch, rank, resume and ship deep-RL agents from a terminal."""

__version__ = "0.1.0"
