"""The whole law, with every part of its text loaded."""

from freehold.spec import (
    contracts,
    events,
    flight,
    invariants,
    operations,
    pool_contracts,
    pool_operations,
    pool_rules,
    pools,
    witnesses,
)
from freehold.spec.state import law

__all__ = [
    "contracts",
    "events",
    "flight",
    "invariants",
    "law",
    "operations",
    "pool_contracts",
    "pool_operations",
    "pool_rules",
    "pools",
    "witnesses",
]
