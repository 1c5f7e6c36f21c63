"""The text reading names everything the law has, and reads as mathematics."""

from freehold.spec import text
from freehold.spec.law import law


def test_everything_is_printed() -> None:
    page = text.markdown(law)
    for table in (law.relations, law.functions, law.actions, law.operations, law.invariants, law.contracts):
        for name in table:
            assert f"`{name}" in page, name
    for action in law.actions.values():
        for clause in action.guard:
            assert f"| {clause.text} | `" in page


def test_formulas_read_as_mathematics() -> None:
    prop = law.invariants["owned_page_is_mapped"]
    assert text.formula(prop.term) == "∀ k: Record, p: Page · owns(k, p) → maps(k, p)"
    lone = law.invariants["page_has_one_record"]
    assert text.formula(lone.term) == "∀ p: Page · at most one k: Record · owns(k, p)"
    assert text.formula(law.actions["grow"].guard[1].term) == "A(k) < a"


def test_updates_say_who_gains_what() -> None:
    acquire = law.actions["acquire"]
    assert [text.update(u) for u in acquire.updates] == [
        "free loses (x) for all x: Page with pages(x)",
        "owns gains (k, x) for all x: Page with pages(x)",
    ]
    assert text.signature(acquire) == "acquire(k: Record, pages: set of Page)"


def test_a_contract_shows_the_state_after() -> None:
    assert "A'(k) = a" in text.formula(law.contracts["grow: room is as asked"].term)
