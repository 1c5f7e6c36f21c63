"""Programs for what random ones rarely come to: each goes straight to one corner of the scheduler."""

from __future__ import annotations

from collections.abc import Mapping

from freehold.impl.engine import EngineConfig
from freehold.model_check.programs import Program

SCENES: Mapping[str, Program] = {
    "who gives way is between two chunks": Program(
        EngineConfig(page_size=16, num_pages=8, max_context_tokens=64, max_running=3, chunk_tokens=2),
        (
            ("submit", [0], 40, True, -1, 0), ("submit", [1], 40, True, -1, 0), ("step", 4),
            ("submit", [2] * 60, 2, True, -1, 0), ("drain",),
        ),
    ),
    "a turn goes back behind KV that fills the pool": Program(
        EngineConfig(page_size=1, num_pages=12, max_context_tokens=12, max_running=2, chunk_tokens=8),
        (
            ("open", 0), ("turn", 0, [0, 1, 2, 0, 1, 2, 0], 3, -1, -1), ("drain",), ("turn", 0, [1] * 6, 3, -1, 7),
            ("drain",),
        ),
    ),
    "a turn goes back, and a state cannot": Program(
        EngineConfig(
            page_size=1, num_pages=14, max_context_tokens=12, max_running=2, chunk_tokens=8, num_state_slots=4
        ),
        (
            ("open", 0), ("turn", 0, [2, 0, 1, 0, 1, 0, 1], 2, -1, -1), ("drain",), ("turn", 0, [2], 1, -1, 2),
            ("drain",),
        ),
    ),
}  # fmt: skip
"""By what happens in each."""
