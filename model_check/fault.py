"""What an engine fault is, and how it is planted in memory for as long as a `with` lasts; no file is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any


@contextmanager
def swapped(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


@dataclass(frozen=True, slots=True)
class Fault:
    """One bug: which attribute of which class or module is done wrongly, and how."""

    name: str
    kind: str
    says: str
    places: tuple[tuple[Any, str], ...]
    wrong: Callable[..., Any]

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The engine has the bug inside the `with`."""
        with ExitStack() as stack:
            for owner, name in self.places:
                stack.enter_context(swapped(owner, name, self._around(vars(owner)[name])))
            yield

    def _around(self, original: Any) -> Any:
        right = original.fget if isinstance(original, property) else original

        def method(*args: Any, **named: Any) -> Any:
            return self.wrong(right, *args, **named)

        return property(method) if isinstance(original, property) else method


FAULTS: list[Fault] = []


def plant(kind: str, *places: tuple[Any, str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The function becomes a fault: its name says what is forgotten or wrong, its docstring what that means."""

    def register(wrong: Callable[..., Any]) -> Callable[..., Any]:
        says = (wrong.__doc__ or "").strip()
        FAULTS.append(Fault(wrong.__name__.replace("_", " "), kind, says, places, wrong))
        return wrong

    return register
