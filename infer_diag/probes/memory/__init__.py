"""Allocators of a live GPU: what they hand out, what they hold idle, and when they fail."""
