"""Tidegate client."""
