"""The TLA+ reading: a module that is whole and well nested, and has everything that the law has in its scope.

TLC is not at hand here. What its syntax asks for is checked on the text, a small reader of that text counts states in
little scopes, and the counts that the manual tells to expect are those of the search.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from law.tla_reading import Module

from freehold.model_check.explore import explore
from freehold.model_check.scopes import SCOPES, scope
from freehold.spec.law import law
from freehold.spec.terms import Element
from freehold.spec.tla import Tla, export

MANUAL = Path(__file__).parents[2] / "docs" / "tla.md"
TINY = SCOPES["tiny"]
IN_SCOPE = TINY.law(law)
PAIRS = {")": "(", "]": "[", "}": "{", ">>": "<<"}
SORTS = "|".join([*TINY.sizes, "Number"])
BINDER = re.compile(rf"(?:(\w+)|<<([\w, ]+)>>) \\in (?:\{{|\b(?:{SORTS})\b)")


@pytest.fixture(scope="module")
def tiny() -> Tla:
    return export(IN_SCOPE, "Freehold", TINY.sizes, TINY.constants, TINY.numbers)


def code(module: str) -> str:
    """The module without its comments."""
    return "\n".join(line.split("\\*")[0] for line in re.sub(r"\(\*.*?\*\)", "", module).splitlines())


def definitions(module: str) -> dict[str, str]:
    """The text of each operator by its name."""
    parts = re.split(r"^(\w+)(?:\([\w, ]*\))? ==", code(module), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_brackets_are_closed_in_order(tiny: Tla) -> None:
    for name, body in definitions(tiny.module).items():
        open_ones: list[str] = []
        for token in re.findall(r"<<|>>|[()\[\]{}]", body):
            if token in PAIRS:
                assert open_ones, name
                assert open_ones.pop() == PAIRS[token], name
            else:
                open_ones.append(token)
        assert not open_ones, name


def test_the_module_begins_and_ends(tiny: Tla) -> None:
    assert re.match(r"-{4,} MODULE Freehold -{4,}\n", tiny.module)
    assert re.search(r"\n={4,}\n$", tiny.module)
    assert "SPECIFICATION Spec" in tiny.config


def test_everything_in_scope_is_defined_once(tiny: Tla) -> None:
    names = re.findall(r"^(\w+)(?:\([\w, ]*\))? ==", code(tiny.module), flags=re.MULTILINE)
    assert len(names) == len(set(names))
    wanted = {f"Can_{a}" for a in IN_SCOPE.actions} | {f"Then_{a}" for a in IN_SCOPE.actions}
    wanted |= {f"Op_{o}" for o in IN_SCOPE.operations} | {f"Inv_{i}" for i in IN_SCOPE.invariants}
    assert set(names) == wanted | {"Number", "Min", "Max", "Init", "Next", "Spec"}


def test_next_takes_each_operation_with_all_its_parameters(tiny: Tla) -> None:
    found = re.findall(r"\\/ (?:\(\\E (.*?) : )?Op_(\w+)", definitions(tiny.module)["Next"])
    assert [operation for _, operation in found] == list(IN_SCOPE.operations)
    for bound, operation in found:
        assert bound.count("\\in") == len(IN_SCOPE.operations[operation].params), operation


def test_an_operation_is_one_step_through_all_its_events(tiny: Tla) -> None:
    parts = definitions(tiny.module)
    for name, operation in IN_SCOPE.operations.items():
        body, events = parts[f"Op_{name}"], [s.action.name for s in operation.steps]
        assert re.findall(r"Then_(\w+)\(", body) == events, name
        assert re.findall(r"Can_(\w+)\(", body) == events, name
        assert body.count("state'") == 1, name
        assert f"state' = st{len(events)}" in body, name


def test_every_invariant_is_checked(tiny: Tla) -> None:
    listed = tiny.config.partition("INVARIANTS")[2].split()
    assert listed[:-2] == [f"Inv_{i}" for i in IN_SCOPE.invariants]
    assert listed[-2:] == ["CHECK_DEADLOCK", "FALSE"]
    for quiescent in (p for p in IN_SCOPE.invariants.values() if p.group == "quiescent"):
        assert "state.place[r] = 0" in definitions(tiny.module)[f"Inv_{quiescent.name}"]


def test_all_constants_have_values(tiny: Tla) -> None:
    (declared,) = re.findall(r"^CONSTANTS (.*)$", tiny.module, flags=re.MULTILINE)
    given = dict(re.findall(r"^    (\w+) = (.*)$", tiny.config, flags=re.MULTILINE))
    assert set(declared.split(", ")) == set(given)
    for sort, size in TINY.sizes.items():
        assert len(given[sort].split(",")) == size


def test_no_name_hides_another(tiny: Tla) -> None:
    """TLA+ refuses a bound variable whose name is in sight already."""
    heads = re.findall(r"^(\w+)(?:\(([\w, ]*)\))? ==", code(tiny.module), flags=re.MULTILINE)
    reserved = {name for name, _ in heads} | {"state"} | set(TINY.sizes) | set(TINY.constants)
    parts = definitions(tiny.module)
    for name, params in heads:
        own = set(params.split(", ")) - {""}
        assert not own & reserved, name
        for visible, bound in scopes(parts[name]):
            assert bound not in reserved | own, name
            assert bound not in visible, name


def scopes(body: str) -> Iterator[tuple[set[str], str]]:
    """Each bound variable with those in sight where it is bound: the ones of the brackets around it, and beside it."""
    binders = {m.start(): re.findall(r"\w+", m[1] or m[2]) for m in BINDER.finditer(body)}
    stack: list[set[str]] = [set()]
    for at, sign in enumerate(body):
        if sign in "([{":
            stack.append(set())
        elif sign in ")]}":
            stack.pop()
        for bound in binders.get(at, ()):
            yield set().union(*stack), bound
            stack[-1].add(bound)


def test_the_scopes_are_told_apart() -> None:
    seen = [
        (sorted(visible), bound) for visible, bound in scopes(r"(\A k \in Page : {k_1 \in Row : x}) {k \in Row : y}")
    ]
    assert seen == [([], "k"), (["k"], "k_1"), ([], "k")]


def test_guards_and_effects_are_written_over_sets(tiny: Tla) -> None:
    evict = IN_SCOPE.actions["evict"]
    clause = next(c for c in evict.guard if c.text == "no record locks the page")
    line = next(x for x in tiny.module.splitlines() if x.endswith("\\* no record locks the page"))
    assert clause in evict.guard
    assert line == "    /\\ ~(\\E k \\in Record : (<<k, p>> \\in st.locks)) \\* no record locks the page"
    attach = definitions(tiny.module)["Then_attach"]
    assert "!.maps = ((st.maps \\ {<<k, q>> : q \\in {q_1 \\in Page :" in attach
    assert "\\cup {<<k, p>>})" in attach


def test_a_change_under_a_condition_keeps_it() -> None:
    (p,) = law.actions["evict"].params
    assert isinstance(p, Element)
    update = law.relations["free"].drop(p, when=law.relations["in_tree"](p))
    changed = replace(law.actions["evict"], updates=(update,))
    one = export(replace(law, actions={"evict": changed}), "One", {s.__name__: 1 for s in law.sorts}, {}, range(1))
    effect = " ".join(definitions(one.module)["Then_evict"].split())
    assert effect == "[st EXCEPT !.free = (st.free \\ (IF (p \\in st.in_tree) THEN {p} ELSE {}))]"


def test_the_manual_tells_the_counts_of_the_search() -> None:
    found = explore(law, "tiny")
    manual = MANUAL.read_text(encoding="utf-8")
    assert found.closed
    for words in (
        f"{found.distinct:,} distinct states",
        f"{found.generated + 1:,} states generated",
        f"depth of the complete state graph search is {found.depth + 1}",
    ):
        assert words in " ".join(manual.split()), f"docs/tla.md should say: {words}"


@pytest.mark.parametrize("more", [{}, {"SwaPage": 1, "window": 1}, {"HostPage": 1}], ids=str)
def test_the_text_of_the_module_counts_what_the_search_counts(more: dict[str, int]) -> None:
    """By a reader of the text that knows nothing of the law; every invariant is true in each of its states."""
    within = scope("one", pages=1, rows=1, records=1, requests=1, sessions=1, page_size=1, row_width=2, **more)
    text = export(within.law(law), "One", within.sizes, within.constants, within.numbers)
    found = explore(law, within)
    assert found.closed
    assert Module(text.module, text.config).count() == (found.distinct, found.generated, found.depth)
