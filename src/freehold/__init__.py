"""Freehold: every KV page is free, or held by exactly one owner."""

__version__ = "0.1.0"
