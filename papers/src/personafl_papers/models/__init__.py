"""Models of the papers."""
