"""Modules of ours that need an extra: imported when they are used, with a word on what to install."""

from importlib import import_module
from types import ModuleType

from freehold.spec.errors import Unsupported


def import_extra(name: str, extra: str) -> ModuleType:
    """A module of ours that needs the extra `extra`. Raises Unsupported where one of its packages is missing."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "freehold":
            raise
        raise Unsupported(f"this needs the package {error.name}: pip install 'freehold[{extra}]'") from error
