"""The events, written down a second time as plainly as possible, to hold the engine to.

Dicts and lists, no cleverness and nothing shared with the engine: each method is one event, says what it needs, and
does it.
"""

from collections.abc import Sequence

from freehold.impl.observe import RELATIONS

OUT, WAITING, PREFILL, PARKED, RUNNING = range(5)
EDGES = {
    (OUT, WAITING), (WAITING, PREFILL), (WAITING, OUT), (PREFILL, PARKED), (PARKED, PREFILL), (PREFILL, RUNNING),
    *((place, back) for place in (PREFILL, PARKED, RUNNING) for back in (WAITING, OUT)),
}  # fmt: skip


def need(condition: bool, rule: str) -> None:
    if not condition:
        raise AssertionError(rule)


class NaiveLaw:
    """State of every page, row, record, request and session, changed by events alone."""

    def __init__(self, *, num_pages: int, num_rows: int, row_width: int, page_size: int) -> None:
        self.page_size, self.row_width = page_size, row_width
        self.all_pages = set(range(1, num_pages + 1))
        self.free = set(self.all_pages)
        self.row_free = set(range(1, num_rows + 1))
        self.parent: dict[int, int | None] = {}  # its keys are the pages in the tree
        self.owned: dict[int, set[int]] = {}
        self.row: dict[int, list[int]] = {}
        self.locked: dict[int, list[int]] = {}
        self.row_of: dict[int, int] = {}
        self.lengths: dict[int, tuple[int, int, int]] = {}
        self.kv: dict[str, int] = {}
        self.slot_kv: dict[str, int] = {}
        self.turn: dict[str, str] = {}
        self.opened: set[str] = set()
        self.closing: set[str] = set()
        self.place_of: dict[str, int] = {}
        self.known_records: set[int] = set()

    def apply(self, name: str, *args: object) -> None:
        getattr(self, f"on_{name}")(*args)

    def pages(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    # pages

    def on_acquire(self, k: int, pages: Sequence[int]) -> None:
        need(len(set(pages)) == len(pages) > 0, "acquire: distinct pages, and some")
        need(set(pages) <= self.free, "acquire: every page is free")
        self.free -= set(pages)
        self.owned[k] |= set(pages)

    def on_release(self, k: int, pages: Sequence[int]) -> None:
        need(len(set(pages)) == len(pages) > 0, "release: distinct pages, and some")
        need(set(pages) <= self.owned[k], "release: the record owns each page")
        need(not set(pages) & set(self.row[k]), "release: no page is mapped any more")
        self.owned[k] -= set(pages)
        self.free |= set(pages)

    def on_evict(self, pages: Sequence[int]) -> None:
        for page in pages:
            need(page in self.parent, "evict: the page is in the tree")
            need(page not in self.parent.values(), "evict: the page is a leaf")
            need(all(page not in path for path in self.locked.values()), "evict: nobody locks the page")
            del self.parent[page]
            self.free.add(page)

    # records

    def on_bind_row(self, r: str, k: int, w: int) -> None:
        need(w in self.row_free, "bind_row: the row is free")
        need(r not in self.kv, "bind_row: the request holds no record")
        need(k not in self.known_records, "bind_row: the record is new")
        self.known_records.add(k)
        self.row_free.remove(w)
        self.row_of[k], self.kv[r] = w, k
        self.owned[k], self.row[k], self.locked[k], self.lengths[k] = set(), [], [], (0, 0, 0)

    def on_unbind_row(self, k: int, w: int) -> None:
        need(self.row_of[k] == w, "unbind_row: the row is the record's")
        need(not (self.owned[k] or self.row[k] or self.locked[k]), "unbind_row: the record is empty")
        del self.row_of[k]
        self.row_free.add(w)

    def on_close(self, k: int) -> None:
        need(k not in self.row_of, "close: the record has no row")
        self.kv = {r: x for r, x in self.kv.items() if x != k}
        self.slot_kv = {s: x for s, x in self.slot_kv.items() if x != k}
        del self.owned[k], self.row[k], self.locked[k], self.lengths[k]

    def on_extend(self, k: int, pages: Sequence[int], a: int) -> None:
        p, c, old = self.lengths[k]
        need(k in self.kv.values(), "extend: a request holds the record")
        need(old < a <= self.row_width, "extend: the length grows within the row")
        need(len(pages) == self.pages(a) - self.pages(old), "extend: as many pages as the length needs")
        need(set(pages) <= self.owned[k] - set(self.row[k]), "extend: pages are owned and not mapped")
        self.row[k] += pages
        self.lengths[k] = (p, c, a)

    def on_commit(self, k: int, c: int) -> None:
        p, old, a = self.lengths[k]
        need(old < c <= a, "commit: the length grows within the room")
        self.lengths[k] = (p, c, a)

    def on_truncate(self, k: int, a: int) -> None:
        p, c, old = self.lengths[k]
        need(p <= a < old, "truncate: the length shrinks, the published prefix stays")
        del self.row[k][self.pages(a) :]
        self.lengths[k] = (p, min(c, a), a)

    # the tree

    def on_lock(self, k: int, pages: Sequence[int]) -> None:
        for page in pages:
            need(page in self.parent, "lock: the page is in the tree")
            need(self.parent[page] == (self.locked[k][-1] if self.locked[k] else None), "lock: from the root down")
            self.locked[k].append(page)

    def on_attach(self, k: int, pages: Sequence[int]) -> None:
        for page in pages:
            p, c, a = self.lengths[k]
            index = p // self.page_size
            need(self.locked[k][index] == page, "attach: the page is locked and continues the prefix")
            self.row[k][index : index + 1] = [page]
            p += self.page_size
            self.lengths[k] = (p, max(c, p), max(a, p))

    def on_publish(self, k: int, a: int) -> None:
        p, c, room = self.lengths[k]
        need(p < a <= c and a % self.page_size == 0, "publish: whole written pages")
        for index in range(p // self.page_size, a // self.page_size):
            page = self.row[k][index]
            self.owned[k].remove(page)
            before = self.row[k][index - 1] if index else None
            need(before is None or before in self.parent, "publish: the page before is in the tree")
            self.parent[page] = before
            self.locked[k].append(page)
        self.lengths[k] = (a, c, room)

    def on_unlock(self, k: int, a: int) -> None:
        p, _, room = self.lengths[k]
        need(room == p and 0 <= a < p and a % self.page_size == 0, "unlock: nothing private behind the cut")
        del self.locked[k][a // self.page_size :]
        del self.row[k][a // self.page_size :]
        self.lengths[k] = (a, a, a)

    # holders

    def on_transfer_to_session(self, r: str, k: int, s: str) -> None:
        need(self.kv.get(r) == k, "transfer: the request holds the record")
        need(self.turn.get(s) == r and s not in self.slot_kv, "transfer: to the empty slot of its session")
        self.slot_kv[s] = self.kv.pop(r)

    def on_transfer_to_request(self, s: str, k: int, r: str) -> None:
        need(self.slot_kv.get(s) == k, "transfer: the slot holds the record")
        need(self.turn.get(s) == r and r not in self.kv, "transfer: to the live turn, which holds nothing")
        self.kv[r] = self.slot_kv.pop(s)

    def on_open_session(self, s: str) -> None:
        need(s not in self.opened, "open_session: not open")
        self.opened.add(s)

    def on_use(self, s: str, r: str) -> None:
        need(s in self.opened - self.closing and s not in self.turn, "use: open, not closing, no live turn")
        need(r not in self.turn.values(), "use: no other session's turn")
        self.turn[s] = r

    def on_unuse(self, s: str, r: str) -> None:
        need(self.turn.get(s) == r and r not in self.kv, "unuse: the live turn, which holds nothing")
        del self.turn[s]

    def on_close_session(self, s: str) -> None:
        need(s in self.opened - self.closing, "close_session: open, asked once")
        self.closing.add(s)

    def on_end_session(self, s: str) -> None:
        need(s in self.closing and s not in self.turn and s not in self.slot_kv, "end_session: closing, idle, empty")
        self.opened.remove(s)
        self.closing.remove(s)

    def on_place(self, r: str, place: int) -> None:
        need((self.place_of.get(r, OUT), place) in EDGES, "place: a legal edge")
        self.place_of[r] = place

    def on_mark(self, kind: str) -> None:
        self.check_step()
        if kind == "quiescent":
            need(all(place == OUT for place in self.place_of.values()), "quiescent: every request is out")
            need(set(self.row_of) == set(self.slot_kv.values()), "quiescent: only sessions hold")

    # invariants

    def check_step(self) -> None:
        homes = [self.free, set(self.parent), *self.owned.values()]
        need(sum(map(len, homes)) == len(self.all_pages) == len(set().union(*homes)), "every page has one home")
        for k, (p, c, a) in self.lengths.items():
            need(p <= c <= a and p % self.page_size == 0, "P <= C <= A")
            need(len(self.row[k]) == self.pages(a), "the row maps the room")
            prefix = self.pages(p)
            need(self.row[k][:prefix] == self.locked[k], "the locked path is the mapped prefix")
            need(set(self.row[k][prefix:]) == self.owned[k], "the rest of the row is what the record owns")
        need(len({*self.kv.values(), *self.slot_kv.values()}) == len(self.kv) + len(self.slot_kv), "one holder each")
        for r, place in self.place_of.items():
            need((r in self.kv) == (place in (PREFILL, PARKED, RUNNING)), f"{r} holds KV exactly where it may")
        need(all(self.place_of[r] != OUT for r in self.turn.values()), "no live turn is out")
        need(self.closing <= set(self.turn), "a closing session without a turn is gone")

    # what an observer should see

    def relations(self) -> dict[str, set[tuple[object, ...]]]:
        known: dict[str, set[tuple[object, ...]]] = {
            "free": {(p,) for p in self.free},
            "owns": {(k, p) for k, pages in self.owned.items() for p in pages},
            "in_tree": {(p,) for p in self.parent},
            "parent": {(p, q) for p, q in self.parent.items() if q is not None},
            "locks": {(k, p) for k, pages in self.locked.items() for p in pages},
            "maps": {(k, p) for k, pages in self.row.items() for p in pages},
            "row_free": {(w,) for w in self.row_free},
            "row_of": set(self.row_of.items()),
            "kv": set(self.kv.items()),
            "slot_kv": set(self.slot_kv.items()),
            "turn": set(self.turn.items()),
            "opened": {(s,) for s in self.opened},
            "closing": {(s,) for s in self.closing},
        }
        return {name: known.get(name, set()) for name in RELATIONS}  # nothing is in the pools that there are not

    def functions(self) -> dict[str, dict[object, int]]:
        positions: dict[object, int] = {p: self.depth(p) for p in self.parent}
        positions |= {p: index for pages in self.row.values() for index, p in enumerate(pages)}
        return {
            **{name: {k: lengths[i] for k, lengths in self.lengths.items()} for i, name in enumerate("PCA")},
            "E": dict.fromkeys(self.lengths, 0),
            "S": {},
            "pos": positions,
            "place": {r: place for r, place in self.place_of.items() if place != OUT},
        }

    def depth(self, page: int) -> int:
        before = self.parent[page]
        return 0 if before is None else 1 + self.depth(before)
