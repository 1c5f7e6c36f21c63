"""The whole law, with every part of its text loaded."""

from freehold.spec import contracts, events, invariants, operations, witnesses
from freehold.spec.state import law

__all__ = ["contracts", "events", "invariants", "law", "operations", "witnesses"]
