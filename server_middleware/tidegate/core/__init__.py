"""The admission core."""
