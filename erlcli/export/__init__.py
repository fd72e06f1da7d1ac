"""Trained policies in formats that run without the tool."""
