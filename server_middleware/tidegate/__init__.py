"""Tidegate."""
