"""The text reading names everything the law has, and reads as mathematics; its page is derived, whatever the law."""

from __future__ import annotations

from pathlib import Path

from freehold.spec import text
from freehold.spec.absent import without
from freehold.spec.concrete import State
from freehold.spec.diagrams import graph, life, place_graphs
from freehold.spec.document import current, markdown
from freehold.spec.language import Body, Law
from freehold.spec.law import law
from freehold.spec.owners import Kept, Owners, kept, lives, moves, pools
from freehold.spec.state import Page, Record, Session
from freehold.spec.terms import Element, Formula, SetOf, forall


def test_everything_is_printed() -> None:
    page = markdown(law)
    for table in (law.relations, law.functions, law.actions, law.operations, law.invariants, law.lemmas):
        for name in table:
            assert f"`{name}" in page, name
    for contract in law.contracts.values():
        assert f"| {contract.name.removeprefix(f'{contract.group}: ')} |" in page
    for witness in law.witnesses:
        assert f"| {witness} |" in page
    for action in law.actions.values():
        for clause in action.guard:
            assert f"| {clause.text} | `" in page


def test_tables_keep_their_columns() -> None:
    width = 0
    for line in markdown(law).splitlines():
        cells = line.replace("\\|", "").count("|") if line.startswith("|") else 0
        assert cells == width or not (cells and width), line
        width = cells


def test_formulas_read_as_mathematics() -> None:
    prop = law.invariants["owned_page_is_mapped"]
    assert text.formula(prop.term) == "∀ k: Record, p: Page · owns(k, p) → maps(k, p)"
    lone = law.invariants["page_has_one_record"]
    assert text.formula(lone.term) == "∀ p: Page · at most one k: Record · owns(k, p)"
    assert text.formula(law.actions["grow"].guard[1].term) == "A(k) < a"
    ladder = law.invariants["ladder"]
    assert text.formula(ladder.term) == "∀ k: Record · 0 ≤ P(k) ∧ P(k) ≤ C(k) ∧ C(k) ≤ A(k) ∧ A(k) ≤ row_width"


def test_arithmetic_keeps_its_meaning_without_needless_brackets() -> None:
    extend = law.actions["extend"]
    assert text.update(extend.updates[1]) == "pos(p) := ⌊(A(k) + page_size - 1) / page_size⌋"
    assert text.formula(law.operations["resume"].guard[0].term) == "place(r) = PARKED"


def test_updates_and_steps_say_who_gains_what() -> None:
    acquire = law.actions["acquire"]
    assert [text.update(u) for u in acquire.updates] == [
        "free loses (x) for all x: Page with pages(x)",
        "owns gains (k, x) for all x: Page with pages(x)",
    ]
    assert text.signature(acquire) == "acquire(k: Record, pages: set of Page)"
    assert [text.step(s) for s in law.operations["decode_page"].steps] == [
        "acquire(k, {p})",
        "extend(k, p, A(k) + 1)",
        "commit(k, A(k))",
    ]
    assert "release(k, {p : owns(k, p)})" in [text.step(s) for s in law.operations["finish"].steps]


def test_a_change_under_a_condition_says_so() -> None:
    (k,), (p,) = law.actions["close"].params, law.actions["evict"].params
    assert isinstance(k, Element)
    assert isinstance(p, Element)
    change = law.relations["owns"].add(k, p, when=law.relations["free"](p))
    assert text.update(change) == "owns gains (k, p) if free(p)"
    assert text.update(law.relations["owns"].add(k, p)) == "owns gains (k, p)"


def test_a_contract_shows_the_state_after() -> None:
    assert "A'(k) = a" in text.formula(law.contracts["grow: room is as asked"].term)


# Owners --------------------------------------------------------------------------------------------------------------


def names(what: Kept, of: Law = law) -> set[tuple[str, str | None, str | None]]:
    return {(m.event, m.source and m.source.name, m.target and m.target.name) for m in moves(of, what)}


def test_owners_and_moves_are_read_off_the_law() -> None:
    (page,) = (k for k in pools(law) if k.sort is Page)
    assert {r.name for r in page.owners} >= {"free", "owns", "in_tree"}
    assert names(page) >= {
        ("acquire", "free", "owns"),
        ("release", "owns", "free"),
        ("publish", "owns", "in_tree"),
        ("evict", "in_tree", "free"),
    }
    (record,) = (k for k in lives(law) if k.sort is Record)
    assert names(record) >= {
        ("bind_row", None, "kv"),
        ("transfer_to_session", "kv", "slot_kv"),
        ("transfer_to_request", "slot_kv", "kv"),
        ("close", "kv", None),
    }
    assert "kv --> slot_kv : transfer_to_session" in life(law, record)
    assert "[*] --> kv : bind_row" in life(law, record)


def test_each_move_of_a_pool_leaves_no_unit_behind() -> None:
    for pool in pools(law):
        assert all(m.source is not None and m.target is not None for m in moves(law, pool)), pool.sort.__name__


def test_a_law_without_sessions_has_no_session_as_owner() -> None:
    alone = without(law, [Session])
    assert "slot_kv" not in {r.name for k in kept(alone) for r in k.owners}
    assert "Session" not in markdown(alone)


def state(**relations: set[tuple[int, ...]]) -> State:
    empty: dict[str, set[tuple[int, ...]]] = {name: set() for name in law.relations}
    return State({s: [0, 1, 2] for s in law.sorts}, {}, {**empty, **relations})


def test_owners_have_names() -> None:
    owners, here = Owners(law), state(owns={(0, 2)}, kv={(1, 0)}, free={(2,), (1,)}, row_free={(0,), (1,)})
    (page,) = (k for k in owners.kept if k.sort is Page)
    assert owners.of(page, 1, here) == ("free",)
    assert sorted(owners.of(page, 2, here)) == ["free", "record 0 (request 1)"]
    assert owners.of(page, 0, here) == ()
    odd = owners.odd(here)
    assert "page 2 has 2 owners: free, record 0 (request 1)" in odd
    assert "page 0 has no owner" in odd
    assert "row 2 has no owner" in odd
    assert not [words for words in odd if words.startswith(("page 1", "record"))]


def test_units_that_change_hands_are_named_with_both_owners() -> None:
    before, after = state(free={(1,)}, kv={(1, 0)}), state(owns={(0, 1)}, slot_kv={(2, 0)})
    assert [str(h) for h in Owners(law).changed(before, after) if "row" not in h.unit] == [
        "page 1: free -> record 0 (session 2)",
        "record 0: request 1 -> session 2",
    ]
    assert Owners(law).changed(before, before) == ()


def test_places_have_the_edges_of_the_guard() -> None:
    (places,) = place_graphs(law)
    assert places.function.name == "place"
    diagram = graph(places)
    assert "OUT --> WAITING" in diagram
    assert "WAITING --> RUNNING" not in diagram


# The page ------------------------------------------------------------------------------------------------------------


class Coin(Element):
    """A coin."""


def small(source: str) -> Law:
    """A law of one pool; coins go from the table to the pocket."""
    mini = Law("coins")
    mini.sort(Coin)
    table, pocket = (mini.relation(name, Coin, doc=f"in the {name}") for name in ("table", "pocket"))

    def take(coins: SetOf[Coin]) -> Body:
        yield forall(Coin, lambda c: coins(c) >> table(c)), "each coin is on the table"
        yield table.loses(coins)
        yield pocket.gains(coins)

    def no_coin_leaks() -> Formula:
        return forall(Coin, lambda c: table(c) | pocket(c))

    take.__doc__ = f"Coins are taken.{source}"
    mini.action(take)
    mini.invariant("always")(no_coin_leaks)
    return mini


def test_another_law_gets_its_own_page() -> None:
    page = markdown(small(""))
    assert "### Pool: Coin" in page
    assert "table --> pocket : take" in page
    assert "Source" not in page


def test_a_source_is_shown_and_is_no_part_of_the_words() -> None:
    cited = small("\n\nSource: a purse,\npage 3")
    assert cited.actions["take"].doc == "Coins are taken."
    assert cited.actions["take"].source == "a purse, page 3"
    assert "Source: a purse, page 3" in markdown(cited)


def test_a_page_is_current_only_while_the_law_is_the_same(tmp_path: Path) -> None:
    page = tmp_path / "law.md"
    assert not current(law, page)
    page.write_text(markdown(law), encoding="utf-8")
    assert current(law, page)
    assert not current(without(law, [Session]), page)
