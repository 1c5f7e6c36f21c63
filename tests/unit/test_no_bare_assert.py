"""A broken contract on a production path raises a typed error: `assert` has no words, and is gone under `python -O`."""

import ast
from pathlib import Path

import pytest

from freehold.impl.serving.completion import Answer
from freehold.impl.serving.loop import Update
from freehold.impl.serving.text import TextStream
from freehold.spec.errors import RuleBroken

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "impl").rglob("*.py"))


def asserts(source: str) -> list[int]:
    """The lines with an `assert` statement."""
    return sorted(node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert))


def test_asserts_are_found() -> None:
    assert asserts("def f(x):\n    if x:\n        assert x, 'no'\n    'assert'\n    assert(x)") == [3, 5]
    assert len(SOURCES) > 30


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_engine_asserts_nothing(path: Path) -> None:
    assert asserts(path.read_text(encoding="utf-8")) == []


def test_an_update_without_token_and_error_is_a_typed_error() -> None:
    answer = Answer(0, None, TextStream(lambda ids: "", ()))  # type: ignore[arg-type]
    with pytest.raises(RuleBroken, match="'a' ended without a token"):
        answer.take(Update("a", None, None))
