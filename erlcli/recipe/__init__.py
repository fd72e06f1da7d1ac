"""Recipes: TOML in, a validated `Recipe` out."""
