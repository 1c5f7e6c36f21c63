"""Serves an engine: assembled from a model, driven by a thread of its own, spoken to over HTTP."""
