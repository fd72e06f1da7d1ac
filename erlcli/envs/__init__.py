"""Environment backends, all looking like `vecenv.VecEnv`."""
