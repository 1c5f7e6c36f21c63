"""Scopes of one bug: only the sorts that it needs."""

from __future__ import annotations

from freehold.model_check.scopes import Scope

_CONSTANTS = {"page_size": 1, "row_width": 1, "window": 0, "namespaces": 1}


def small(**numbers: int) -> Scope:
    """A scope with one row, record and request, pages of one token and rows of one, unless `numbers` say otherwise.

    A sort that is not named (but for those three) is empty.
    """
    sizes = {"Row": 1, "Record": 1, "Request": 1} | {n: v for n, v in numbers.items() if n not in _CONSTANTS}
    constants = {n: numbers.get(n, v) for n, v in _CONSTANTS.items()}
    return Scope(" ".join(f"{n}={v}" for n, v in numbers.items()), sizes, constants)
