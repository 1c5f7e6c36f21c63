"""Events of the other pools: swa pages, state slots, host pages, and what flies between host and device.

An swa page has no owner of its own: it is a full page's peer, and goes where the page goes. A state slot is claimed by
a request before it has a record, then runs in the record, or is a checkpoint in the tree. A host page keeps KV of a
retracted request, mirrors a tree page, or is all that is left of one.
"""

from __future__ import annotations

from freehold.spec.events import give_back, give_back_one
from freehold.spec.language import Body
from freehold.spec.state import (
    HOST,
    NAMESPACES,
    ROW_WIDTH,
    STATE,
    SWA,
    WINDOW,
    A,
    C,
    E,
    HostPage,
    Loan,
    Page,
    Place,
    Record,
    Request,
    StateSlot,
    SwaPage,
    T,
    aligned,
    archive,
    backup,
    begin,
    claims,
    end,
    filling,
    free,
    has_peer,
    has_row,
    host_free,
    host_label,
    host_pos,
    in_tree,
    in_use,
    in_window,
    kv,
    label,
    law,
    locks,
    maps,
    mirror,
    out,
    owns,
    parent,
    peer,
    place,
    pos,
    reads,
    slot_free,
    snapshot,
    spoilt,
    state,
    swa_free,
    target,
    uses_host,
    uses_slot,
    writes,
    written,
)
from freehold.spec.terms import Formula, Int, SetOf, exists, forall, lone, no

# The swa pool --------------------------------------------------------------------------------------------------------


@law.action
def pair(k: Record, p: Page, v: SwaPage) -> Body:
    """A page that was acquired and is not mapped yet gets its swa half.

    Source: sgl-project/sglang#27586.
    """
    yield owns(k, p), "the record owns the page"
    yield ~maps(k, p), "the page is not mapped yet"
    yield ~has_peer(p), "the page has no swa half"
    yield swa_free(v), "the swa page is free"
    yield swa_free.drop(v)
    yield peer.add(p, v)


@law.action
def window_drop(k: Record, floor: Int, e: Int) -> Body:
    """The window moved on: private pages in `[floor, e)` give their swa half back, and keep the full one.

    Source: sgl-project/sglang#29860, #36909 (the window cursor).
    """
    yield WINDOW > 0, "the model has a sliding window"
    yield in_use(k), "a request holds the record"
    yield aligned(e), "the cursor stands at a page border"
    yield E(k) < e, "the cursor moves on"
    yield e + WINDOW <= C(k), "the window behind the last token stays"
    yield peer.loses(lambda p, v: owns(k, p) & maps(k, p) & (begin(p) >= floor) & (end(p) <= e) & peer(p, v))
    yield from give_back(
        SWA,
        lambda v: exists(
            Page, lambda p: owns(k, p) & maps(k, p) & (begin(p) >= floor) & (end(p) <= e) & peer(p, v)
        ),
    )  # fmt: skip
    yield E.becomes(k, e)


@law.action
def evict_peer(p: Page, v: SwaPage) -> Body:
    """A tree page that no window reaches gives its swa half back: a tombstone is left.

    Source: sgl-project/sglang#34870 (tombstones).
    """
    yield in_tree(p), "the page is in the tree"
    yield peer(p, v), "the swa page is its other half"
    yield no(Record, lambda k: locks(k, p) & in_window(k, p)), "no record's window reaches the page"
    yield peer.drop(p, v)
    yield from give_back_one(SWA, v)


@law.action
def repeer(k: Record, d: Page, p: Page, v: SwaPage) -> Body:
    """A tombstone that the record locks takes over the swa half of the record's own copy of the same tokens.

    Source: sgl-project/sglang#29352 (recovery under a lock).
    """
    yield owns(k, d), "the record owns its copy"
    yield maps(k, d), "its copy stands in the row"
    yield end(d) <= C(k), "its copy is written"
    yield label(d) == label(p), "both belong to one namespace"
    yield pos(d) == pos(p), "both stand at one position"
    yield locks(k, p), "the record locks the tree page"
    yield peer(d, v), "the swa page is the copy's other half"
    yield ~has_peer(p), "the tree page has no swa half"
    yield peer.drop(d, v)
    yield peer.add(p, v)


# The state pool ------------------------------------------------------------------------------------------------------


def idle(z: StateSlot) -> Formula:
    return no(Loan, lambda o: uses_slot(o, z))


@law.action
def claim_state(r: Request, z: StateSlot) -> Body:
    """A waiting request takes a slot, before it has a record.

    Source: sgl-project/sglang#12693 (a slot without a record).
    """
    yield slot_free(z), "the slot is free"
    yield place(r) == Place.WAITING, "the request waits"
    yield no(StateSlot, lambda y: claims(r, y)), "the request has no slot yet"
    yield slot_free.drop(z)
    yield claims.add(r, z)
    yield T.becomes(z, 0)


@law.action
def drop_claim(r: Request, slots: SetOf[StateSlot]) -> Body:
    """The slots go from the waiting request to the free ones."""
    yield forall(StateSlot, lambda z: slots(z) >> claims(r, z)), "the request has each slot"
    yield claims[r].loses(slots)
    yield from give_back(STATE, slots)


@law.action
def adopt_state(r: Request, k: Record, z: StateSlot) -> Body:
    """The slot that the request claimed becomes the running state of its record."""
    yield claims(r, z), "the request has the slot"
    yield kv(r, k), "the request holds the record"
    yield has_row(k), "the record has a row"
    yield no(StateSlot, lambda y: state(k, y)), "the record has no state yet"
    yield claims.drop(r, z)
    yield state.add(k, z)


@law.action
def take_state(k: Record, z: StateSlot) -> Body:
    """A record gets a fresh running state."""
    yield slot_free(z), "the slot is free"
    yield in_use(k), "a request holds the record"
    yield has_row(k), "the record has a row"
    yield no(StateSlot, lambda y: state(k, y)), "the record has no state yet"
    yield slot_free.drop(z)
    yield state.add(k, z)
    yield T.becomes(z, 0)


@law.action
def load_state(k: Record, z: StateSlot, p: Page, y: StateSlot) -> Body:
    """Copy on fork: the running state becomes what the checkpoint at the end of the prefix says.

    Source: vllm-project/vllm#44237, #47861 (state and KV of one length).
    """
    yield state(k, z), "the slot is the record's running state"
    yield idle(z), "nothing in flight touches the slot"
    yield snapshot(p, y), "the checkpoint hangs on the page"
    yield locks(k, p), "the record locks the page"
    yield end(p) == C(k), "the page ends where the record does"
    yield T.becomes(z, T(y))


@law.action
def advance_state(k: Record, z: StateSlot, c: Int) -> Body:
    """A forward has taken the running state from the committed tokens to `c`."""
    yield state(k, z), "the slot is the record's running state"
    yield in_use(k), "a request holds the record"
    yield T(z) == C(k), "the state has seen exactly the committed tokens"
    yield C(k) < c, "the length grows"
    yield c <= A(k), "the new tokens have a page behind them"
    yield ~spoilt(k), "no write into the room has failed"
    yield T.becomes(z, c)


@law.action
def checkpoint_state(k: Record, z: StateSlot, p: Page, y: StateSlot) -> Body:
    """A copy of the running state becomes a checkpoint at the end of a locked tree page."""
    yield state(k, z), "the slot is the record's running state"
    yield idle(z), "nothing in flight touches the slot"
    yield locks(k, p), "the record locks the page"
    yield end(p) == T(z), "the state has seen exactly the tokens up to the page's end"
    yield no(StateSlot, lambda x: snapshot(p, x)), "the page has no checkpoint yet"
    yield slot_free(y), "the new slot is free"
    yield slot_free.drop(y)
    yield snapshot.add(p, y)
    yield T.becomes(y, T(z))


@law.action
def donate_state(k: Record, z: StateSlot, p: Page) -> Body:
    """The running state itself becomes a checkpoint at the end of a locked tree page.

    Source: vllm-project/vllm#44237.
    """
    yield state(k, z), "the slot is the record's running state"
    yield idle(z), "nothing in flight touches the slot"
    yield locks(k, p), "the record locks the page"
    yield end(p) == T(z), "the state has seen exactly the tokens up to the page's end"
    yield no(StateSlot, lambda x: snapshot(p, x)), "the page has no checkpoint yet"
    yield state.drop(k, z)
    yield snapshot.add(p, z)


@law.action
def release_state(k: Record, slots: SetOf[StateSlot]) -> Body:
    """The slots go from the record to the free ones."""
    yield forall(StateSlot, lambda z: slots(z) >> state(k, z)), "the record has each slot"
    yield state[k].loses(slots)
    yield from give_back(STATE, slots)


@law.action
def evict_state(p: Page, slots: SetOf[StateSlot]) -> Body:
    """The page's checkpoints go to the free slots."""
    yield forall(StateSlot, lambda z: slots(z) >> snapshot(p, z)), "each slot hangs on the page"
    yield snapshot[p].loses(slots)
    yield from give_back(STATE, slots)


# The host pool -------------------------------------------------------------------------------------------------------


@law.action
def stash(r: Request, k: Record, p: Page, h: HostPage) -> Body:
    """Before a retraction: a written page of the request is copied to a host page, which the request keeps.

    Source: sgl-project/sglang#18701 (a backup has an owner).
    """
    yield kv(r, k), "the request holds the record"
    yield maps(k, p), "the page stands in the row"
    yield end(p) <= C(k), "the page is written"
    yield no(HostPage, lambda x: backup(r, x) & (host_pos(x) == pos(p))), "the request has no copy of this position"
    yield host_free(h), "the host page is free"
    yield host_free.drop(h)
    yield backup.add(r, h)
    yield host_pos.becomes(h, pos(p))
    yield host_label.becomes(h, label(p))


@law.action
def unstash(r: Request, hosts: SetOf[HostPage]) -> Body:
    """The request gives host pages back.

    Source: sgl-project/sglang#18701.
    """
    yield forall(HostPage, lambda h: hosts(h) >> backup(r, h)), "the request has each host page"
    yield backup[r].loses(hosts)
    yield from give_back(HOST, hosts)


@law.action
def copy_out(o: Loan, p: Page, h: HostPage) -> Body:
    """A copy of a tree page to the host sets out.

    Source: sgl-project/sglang#35869.
    """
    yield ~out(o), "the loan is new"
    yield in_tree(p), "the page is in the tree"
    yield host_free(h), "the host page is free"
    yield out.add(o)
    yield reads.add(o, p)
    yield host_free.drop(h)
    yield filling.add(o, h)
    yield host_pos.becomes(h, pos(p))
    yield host_label.becomes(h, label(p))


@law.action
def keep_copy(o: Loan, p: Page, h: HostPage) -> Body:
    """The copy arrived: the host page mirrors the tree page, which is still there."""
    yield filling(o, h), "the loan owns the host page"
    yield reads(o, p), "the loan copies this page"
    yield in_tree(p), "the page is in the tree"
    yield no(HostPage, lambda x: mirror(p, x)), "the page has no copy yet"
    yield filling.drop(o, h)
    yield mirror.add(p, h)


@law.action
def demote(p: Page, h: HostPage) -> Body:
    """The host copy stands for the page from now on; the page itself can be evicted."""
    yield mirror(p, h), "the host page mirrors the page"
    yield mirror.drop(p, h)
    yield archive.add(h)


@law.action
def drop_mirror(p: Page, hosts: SetOf[HostPage]) -> Body:
    """Copies of a tree page go back to the free host pages."""
    yield forall(HostPage, lambda h: hosts(h) >> mirror(p, h)), "each host page mirrors the page"
    yield mirror[p].loses(hosts)
    yield from give_back(HOST, hosts)


@law.action
def evict_host(h: HostPage) -> Body:
    """What lived on the host alone goes."""
    yield archive(h), "the host page stands for a tree page"
    yield archive.drop(h)
    yield from give_back_one(HOST, h)


@law.action
def fetch(o: Loan, h: HostPage, index: Int, x: Int) -> Body:
    """A page is fetched from storage to the host: the one at `index` of its sequence, of namespace `x`.

    Source: sgl-project/sglang#13483, #30053.
    """
    yield ~out(o), "the loan is new"
    yield host_free(h), "the host page is free"
    yield index >= 0, "the position is natural"
    yield (x >= 0) & (x < NAMESPACES), "the namespace exists"
    yield out.add(o)
    yield host_free.drop(h)
    yield filling.add(o, h)
    yield host_pos.becomes(h, index)
    yield host_label.becomes(h, x)


@law.action
def file_away(o: Loan, h: HostPage) -> Body:
    """What was fetched arrived and joins the pages that live on the host alone."""
    yield filling(o, h), "the loan owns the host page"
    yield filling.drop(o, h)
    yield archive.add(h)


@law.action
def copy_in(o: Loan, h: HostPage, p: Page) -> Body:
    """A copy from the host sets out to a free page, which the loan owns meanwhile.

    Source: sgl-project/sglang#30098.
    """
    yield ~out(o), "the loan is new"
    yield archive(h), "the host page stands for a tree page"
    yield free(p), "the page is free"
    yield out.add(o)
    yield uses_host.add(o, h)
    yield free.drop(p)
    yield target.add(o, p)
    yield writes.add(o, p)
    yield pos.becomes(p, host_pos(h))
    yield label.becomes(p, host_label(h))


@law.action
def land(o: Loan, h: HostPage, p: Page, under: SetOf[Page]) -> Body:
    """The copy arrived: the page joins the tree under the page before it, and its host page mirrors it."""
    yield target(o, p), "the loan owns the page"
    yield uses_host(o, h), "the loan copies this host page"
    yield archive(h), "the host page is still there"
    yield (pos(p) >= 0) & (end(p) <= ROW_WIDTH), "the page has a place in a row"
    yield forall(Page, lambda q: under(q) >> (in_tree(q) & (pos(p) == pos(q) + 1))), "the page before it is in the tree"
    yield (pos(p) == 0) | exists(Page, lambda q: under(q)), "a page that is not the first has one before it"
    yield lone(Page, lambda q: under(q)), "it has no other before it"
    yield forall(Page, lambda q: under(q) >> (label(p) == label(q))), "the page before it has its namespace"
    yield target.drop(o, p)
    yield writes.drop(o, p)
    yield in_tree.add(p)
    yield written.add(p)
    yield parent[p].gains(under)
    yield archive.drop(h)
    yield mirror.add(p, h)
