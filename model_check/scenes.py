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
    "two turns go back at once, and their states start afresh": Program(
        EngineConfig(
            page_size=1, num_pages=40, max_context_tokens=16, max_running=2, chunk_tokens=3, num_state_slots=4
        ),
        (
            ("open", 0), ("open", 1), ("turn", 0, [0, 1, 2, 0], 2, -1, -1), ("turn", 1, [2, 1, 0, 2], 2, -1, -1),
            ("drain",), ("turn", 0, [2], 4, -1, 2), ("turn", 1, [0, 0], 4, -1, 3), ("drain",),
        ),
    ),
    "a turn goes back into its prefix, behind its window": Program(
        EngineConfig(
            page_size=2, num_pages=20, max_context_tokens=20, max_running=2, chunk_tokens=20, window_tokens=2,
            num_swa_pages=10,
        ),
        (
            ("submit", [0, 1, 2, 0, 1, 2, 0, 1], 1, True, -1, 0), ("drain",), ("open", 0),
            ("turn", 0, [0, 1, 2, 0, 1, 2, 0, 1, 2, 2], 6, -1, -1), ("drain",), ("turn", 0, [1], 2, -1, 11),
            ("drain",), ("submit", [2] * 18, 2, False, -1, 0), ("drain",),
        ),
    ),
    "a prefix hit needs the halves that a session could give": Program(
        EngineConfig(
            page_size=1, num_pages=24, max_context_tokens=12, max_running=2, chunk_tokens=3, window_tokens=2,
            num_swa_pages=6,
        ),
        (
            ("submit", [0, 1, 2, 0], 1, True, -1, 0), ("drain",), ("open", 0), ("turn", 0, [2, 2, 2], 2, -1, -1),
            ("drain",), ("submit", [0, 1, 2, 0, 1, 1, 1], 2, False, -1, 0), ("drain",),
        ),
    ),
    "a prefix hit is all that could be evicted": Program(
        EngineConfig(page_size=1, num_pages=12, max_context_tokens=12, max_running=2, chunk_tokens=8),
        (
            ("submit", [0, 1, 2, 0, 1, 2, 0, 1], 1, True, -1, 0), ("drain",), ("submit", [2, 2], 6, False, -1, 0),
            ("step", 1), ("submit", [0, 1, 2, 0, 1, 2, 0, 1, 2, 2], 1, True, -1, 0), ("drain",),
        ),
    ),
    "who waits runs out of time": Program(
        EngineConfig(page_size=1, num_pages=12, max_context_tokens=12, max_running=1, waiting_timeout_s=2),
        (
            ("submit", [0], 8, True, -1, 0), ("submit", [1], 8, True, -1, 0), ("step", 1), ("wait", 3), ("step", 1),
        ),
    ),
    "a session is idle only when no turn is live": Program(
        EngineConfig(page_size=1, num_pages=12, max_context_tokens=12, max_running=1, session_timeout_s=2),
        (
            ("open", 0), ("wait", 2), ("turn", 0, [0], 4, -1, -1), ("step", 1), ("wait", 3), ("step", 1),
            ("drain",), ("wait", 2), ("step", 1), ("wait", 1), ("step", 1),
        ),
    ),
}  # fmt: skip
"""By what happens in each."""
