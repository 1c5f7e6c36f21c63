"""What a scheduler does with the other pools and with what is in flight; see `operations`."""

from __future__ import annotations

from freehold.spec.events import acquire, attach, bind_row, commit, evict, extend, grow, lock, place_, release
from freehold.spec.flight import lend, loan_close
from freehold.spec.operations import Steps, everything, leave
from freehold.spec.pools import (
    adopt_state,
    advance_state,
    checkpoint_state,
    claim_state,
    copy_in,
    copy_out,
    demote,
    donate_state,
    drop_mirror,
    evict_host,
    evict_peer,
    evict_state,
    fetch,
    file_away,
    keep_copy,
    land,
    load_state,
    pair,
    release_state,
    repeer,
    stash,
    take_state,
    unstash,
    window_drop,
)
from freehold.spec.state import (
    PAGE_SIZE,
    A,
    C,
    End,
    HostPage,
    Loan,
    Page,
    Place,
    Record,
    Request,
    Row,
    Session,
    StateSlot,
    SwaPage,
    backup,
    claims,
    host_label,
    host_pos,
    kv,
    law,
    lent,
    owns,
    place,
    reads,
    salt,
    snapshot,
    turn,
)
from freehold.spec.terms import FALSE, Formula, Int, exists, no

# Both halves of a page -----------------------------------------------------------------------------------------------


@law.operation
def extend_pair(k: Record, p: Page, v: SwaPage, a: Int) -> Steps:
    """Room for a chunk, a page and its swa half at a time."""
    yield acquire(k, p)
    yield pair(k, p, v)
    yield extend(k, p, a)


@law.operation
def decode_pair(k: Record, p: Page, v: SwaPage) -> Steps:
    """One decode step that needs a new page and its swa half."""
    yield acquire(k, p)
    yield pair(k, p, v)
    yield extend(k, p, A(k) + 1)
    yield commit(k, A(k))


@law.operation
def slide(k: Record, floor: Int, e: Int) -> Steps:
    """The window of a request moved on."""
    yield window_drop(k, floor, e)


@law.operation
def bury(p: Page, v: SwaPage) -> Steps:
    """Under pressure in the swa pool a tree page becomes a tombstone."""
    yield evict_peer(p, v)


@law.operation
def dedupe_tombstone(k: Record, p: Page, d: Page, v: SwaPage) -> Steps:
    """Another record published the same page, whose swa half is gone: it takes the half of the own copy."""
    yield lock(k, p)
    yield repeer(k, d, p, v)
    yield attach(k, p)
    yield release(k, d)


# States --------------------------------------------------------------------------------------------------------------


@law.operation
def claim(r: Request, z: StateSlot) -> Steps:
    """A match for a waiting request takes a state slot for it."""
    yield claim_state(r, z)


@law.operation
def admit_state(r: Request, k: Record, w: Row, z: StateSlot) -> Steps:
    """A waiting request with a state slot gets a record and a row; the slot goes along."""
    yield bind_row(r, k, w)
    yield adopt_state(r, k, z)
    yield place_(r, Place.PREFILL)


@law.operation
def renew_state(k: Record, z: StateSlot) -> Steps:
    """A record whose state was given up gets a fresh one."""
    yield take_state(k, z)


@law.operation
def fork_state(k: Record, z: StateSlot, p: Page, y: StateSlot) -> Steps:
    """A prefix hit ends at a checkpoint: its state is copied."""
    yield load_state(k, z, p, y)


@law.operation
def write_state(k: Record, z: StateSlot, c: Int) -> Steps:
    """A forward has written a chunk, and taken the state along."""
    yield advance_state(k, z, c)
    yield commit(k, c)


@law.operation
def decode_state(k: Record, z: StateSlot) -> Steps:
    """One decode step inside the last page, with the state."""
    yield grow(k, A(k) + 1)
    yield advance_state(k, z, A(k))
    yield commit(k, A(k))


@law.operation
def checkpoint(k: Record, z: StateSlot, p: Page, y: StateSlot) -> Steps:
    """An unfinished request leaves a copy of its state in the tree."""
    yield checkpoint_state(k, z, p, y)


@law.operation
def donate(k: Record, z: StateSlot, p: Page) -> Steps:
    """A request that is done leaves its state in the tree."""
    yield donate_state(k, z, p)


@law.operation
def give_up_state(k: Record, z: StateSlot) -> Steps:
    """A state that can't be used any more is given back."""
    yield release_state(k, z)


@law.operation
def evict_checkpoint(p: Page, z: StateSlot) -> Steps:
    """Under pressure in the state pool a checkpoint goes; its page stays."""
    yield snapshot(p, z), "the slot hangs on the page"
    yield evict_state(p, z)


# The host ------------------------------------------------------------------------------------------------------------


@law.operation
def back_up(r: Request, k: Record, p: Page, h: HostPage) -> Steps:
    """Before a retraction: keep one written page on the host."""
    yield stash(r, k, p, h)


@law.operation
def restore_page(r: Request, k: Record, p: Page, h: HostPage) -> Steps:
    """A readmitted request takes the page that comes next back from the host; not with a sliding window."""
    yield kv(r, k), "the request holds the record"
    yield backup(r, h), "the request has the host page"
    yield C(k) == A(k), "everything before it is written"
    yield host_label(h) == salt(k), "the host page has the record's namespace"
    yield acquire(k, p)
    yield extend(k, p, host_pos(h) * PAGE_SIZE + PAGE_SIZE)
    yield commit(k, A(k))
    yield unstash(r, h)


@law.operation
def drop_backup(r: Request, h: HostPage) -> Steps:
    """A host page that the request does not need any more is given back."""
    yield backup(r, h), "the request has the host page"
    yield unstash(r, h)


@law.operation
def write_through(o: Loan, p: Page, h: HostPage) -> Steps:
    """A tree page is copied to the host."""
    yield copy_out(o, p, h)


@law.operation
def write_through_done(o: Loan, p: Page, h: HostPage) -> Steps:
    """The copy arrived while the page was still in the tree."""
    yield keep_copy(o, p, h)
    yield loan_close(o, End.DONE)


@law.operation
def load_back(o: Loan, h: HostPage, p: Page) -> Steps:
    """A page that lives on the host alone is copied to the device."""
    yield copy_in(o, h, p)


@law.operation
def load_back_done(o: Loan, h: HostPage, p: Page, q: Page) -> Steps:
    """The copy arrived and joins the tree behind another page."""
    yield land(o, h, p, q)
    yield loan_close(o, End.DONE)


@law.operation
def load_back_root_done(o: Loan, h: HostPage, p: Page) -> Steps:
    """The copy arrived and is the first page of its sequence."""
    yield land(o, h, p, lambda q: FALSE)
    yield loan_close(o, End.DONE)


@law.operation
def prefetch(o: Loan, h: HostPage, index: Int, x: Int) -> Steps:
    """A page is fetched from storage to the host."""
    yield fetch(o, h, index, x)


@law.operation
def prefetch_done(o: Loan, h: HostPage) -> Steps:
    """The page arrived from storage."""
    yield file_away(o, h)
    yield loan_close(o, End.DONE)


@law.operation
def demote_page(p: Page, h: HostPage) -> Steps:
    """Tree eviction of a leaf page that has a host copy, which stands for it from now on."""
    yield evict_state(p, lambda z: snapshot(p, z))
    yield demote(p, h)
    yield evict(p)


@law.operation
def drop_copy(p: Page, h: HostPage) -> Steps:
    """Under pressure in the host pool the copy of a tree page goes."""
    yield drop_mirror(p, h)


@law.operation
def evict_host_page(h: HostPage) -> Steps:
    """Under pressure in the host pool a page that lives there alone goes."""
    yield evict_host(h)


# Forwards in flight --------------------------------------------------------------------------------------------------


def _in_the_way(k: Record, m: Loan) -> Formula:
    """The loan reads something that is private to the record, as each one does that writes it."""
    return exists(Page, lambda p: owns(k, p) & reads(m, p))


@law.operation
def launch(o: Loan, k: Record, start: Int) -> Steps:
    """A forward step starts on the record, behind whatever is in flight there."""
    yield start < A(k), "there is room to write"
    yield lend(o, k, start, lambda m: _in_the_way(k, m))


@law.operation
def complete(o: Loan, k: Record, c: Int) -> Steps:
    """A forward step is done: what it wrote counts."""
    yield lent(o, k), "the loan runs on the record's account"
    yield loan_close(o, End.DONE)
    yield commit(k, c)


@law.operation
def complete_state(o: Loan, k: Record, z: StateSlot, c: Int) -> Steps:
    """A forward step is done, and took the state along."""
    yield lent(o, k), "the loan runs on the record's account"
    yield loan_close(o, End.DONE)
    yield advance_state(k, z, c)
    yield commit(k, c)


@law.operation
def acknowledge(o: Loan) -> Steps:
    """Something in flight is done, and its result is not wanted any more or needs nothing else."""
    yield loan_close(o, End.DONE)


@law.operation
def fail(o: Loan) -> Steps:
    """An exception in a forward, a failed copy or transfer, or a peer that was cut off."""
    yield loan_close(o, End.FAILED)


# Prefill and decode on two machines ----------------------------------------------------------------------------------


@law.operation
def send(r: Request, o: Loan, k: Record) -> Steps:
    """Prefill is done here; a peer reads the KV."""
    yield kv(r, k), "the request holds the record"
    yield C(k) == A(k), "everything is written"
    yield lend(o, k, A(k), lambda m: _in_the_way(k, m))
    yield place_(r, Place.SENDING)


@law.operation
def sent(r: Request, o: Loan, k: Record, w: Row) -> Steps:
    """The peer has everything: the request is done here."""
    yield (place(r) == Place.SENDING) & kv(r, k), "the request is being sent"
    yield no(Session, lambda s: turn(s, r)), "the request is no session's turn"
    yield lent(o, k), "the loan runs on the record's account"
    yield loan_close(o, End.DONE)
    yield from everything(k, w)
    yield from leave(r)


@law.operation
def receive(r: Request, k: Record, w: Row) -> Steps:
    """A request whose prefill runs elsewhere gets a record and a row; `match_page` and `extend_page` follow."""
    yield no(StateSlot, lambda z: claims(r, z)), "the request has no state slot"
    yield bind_row(r, k, w)
    yield place_(r, Place.RECEIVING)


@law.operation
def await_peer(o: Loan, k: Record) -> Steps:
    """A peer starts to write the KV of a request that waits for it."""
    yield C(k) < A(k), "there is room to write"
    yield lend(o, k, C(k), lambda m: _in_the_way(k, m))


@law.operation
def received(r: Request, o: Loan, k: Record) -> Steps:
    """The peer's KV is there: the request decodes."""
    yield (place(r) == Place.RECEIVING) & kv(r, k), "the request is being received"
    yield lent(o, k), "the loan runs on the record's account"
    yield loan_close(o, End.DONE)
    yield commit(k, A(k))
    yield place_(r, Place.RUNNING)
