"""Runs models over paged KV. Needs the packages of the extra `engine`; says so where they are missing."""

from importlib.util import find_spec

from freehold.spec.errors import Unsupported

for _package in ("torch", "transformers", "gguf"):
    if find_spec(_package) is None:
        raise Unsupported(f"running a model needs the package {_package}: pip install 'freehold[engine]'")
