"""A state-space model says from its slots what transformers says from its own cache.

Logits lie within 1e-4 of transformers' (their spread is about 2; float32): a chunked scan sums in another order than
one over the whole prompt. Whatever no request holds is NaN: free pages, free slots and the padding of both.
"""

from itertools import pairwise

import pytest
import torch
from unit.paged_bench import STATE_SLOTS, Bench, generated, item, plain_logits, tables_for
from unit.tiny_models import RECURRENT, prompt, tiny

from freehold.impl.execution.model_runner import ModelRunner
from freehold.spec.errors import InvalidInput, Unsupported

TOLERANCE = 1e-4


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", RECURRENT)
def test_chunks_and_decodes_equal_a_whole_prefill(name: str) -> None:
    """Chunks shorter than the convolution, and borders beside those of the scan's own chunks."""
    ids = prompt(50, 1)
    bench = Bench(name, 4)
    bench.give(1, 50)
    rows = []
    borders = (0, 1, 3, 10, 16, 33, *range(34, 51))
    for start, stop in pairwise(borders):
        rows.append(bench.logits(item(1, ids[start:stop], start, state_slot=4)))
    plain = plain_logits(name, ids)[[stop - 1 for stop in borders[1:]]]
    torch.testing.assert_close(torch.cat(rows), plain, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("name", RECURRENT)
def test_greedy_tokens_equal_generate_in_a_mixed_batch(name: str) -> None:
    bench = Bench(name, 4)
    prompts = {1: prompt(7, 1), 2: prompt(30, 2), 3: prompt(1, 3)}
    rows = {row: list(ids) for row, ids in prompts.items()}
    for row, ids in rows.items():
        bench.give(row, len(ids) + 9)
    (first,) = bench.step(item(1, rows[1], 0))
    assert first is not None
    rows[1].append(first)
    assert bench.step(item(2, rows[2][:9], 0, samples=False)) == [None]
    mixed = bench.step(item(2, rows[2][9:], 9), item(1, rows[1][-1:], 7), item(3, rows[3], 0))
    for row, token in zip((2, 1, 3), mixed, strict=True):
        assert token is not None
        rows[row].append(token)
    bench.decode(rows, 6)
    for row, ids in rows.items():
        assert ids == [*prompts[row], *generated(name, prompts[row], len(ids) - len(prompts[row]))], row


@pytest.mark.parametrize("name", RECURRENT)
def test_a_copied_state_goes_on_where_its_source_was(name: str) -> None:
    """A prefix, whose pages two rows share, forks: each goes on from a copy of its state, the source stays."""
    bench = Bench(name, 4)
    prefix, tails = prompt(16, 5), {2: prompt(6, 6), 3: prompt(9, 7)}
    bench.give(1, 16)
    bench.step(item(1, prefix, 0, samples=False))
    checkpoint = [state[1].clone() for state in bench.runner.states.tensors()]  # type: ignore[union-attr]
    for row, tail in tails.items():
        bench.page_table[row, :4] = bench.page_table[1, :4]
        bench.give(row, 16 + len(tail) + 5)
        bench.runner.copy_states([(1, row)])
        ids = [*prefix, *tail, bench.one(item(row, tail, 16))]
        bench.decode({row: ids}, 4)
        assert ids[-5:] == generated(name, prefix + tail, 5)
    for state, before in zip(bench.runner.states.tensors(), checkpoint, strict=True):  # type: ignore[union-attr]
        assert torch.equal(state[1], before)
    assert generated(name, prefix + tails[2], 5) != generated(name, prefix + tails[3], 5)


def test_pairs_are_copied_one_after_the_other() -> None:
    bench = Bench("falcon_h1", 4)
    states = list(bench.runner.states.tensors())  # type: ignore[union-attr]
    for state in states:
        state[1].fill_(7.0)
    bench.runner.copy_states([(1, 2), (2, 5)])
    for state in states:
        assert bool((state[[1, 2, 5]] == 7.0).all())
        assert bool(state[[0, 3, 4]].isnan().all())


def test_a_slot_that_does_not_exist_is_refused() -> None:
    bench = Bench("falcon_h1", 4)
    bench.give(1, 4)
    bench.give(2, 4)
    for slot in (0, STATE_SLOTS + 1):
        with pytest.raises(InvalidInput, match=f"state slot {slot} does not exist"):
            bench.step(item(2, (1, 2), 0), item(1, (1, 2), 0, state_slot=slot))
        with pytest.raises(InvalidInput, match=f"state slot {slot} does not exist"):
            bench.runner.copy_states([(2, 1), (1, slot)])
    with pytest.raises(InvalidInput, match="state slot 2 is given to two requests"):
        bench.step(item(2, (1, 2), 0), item(1, (1, 2), 0)._replace(state_slot=2))
    assert all(bool(state.isnan().all()) for state in bench.runner.states.tensors())  # type: ignore[union-attr]
    with pytest.raises(InvalidInput, match="no recurrent state"):
        Bench("llama", 4).runner.copy_states([(1, 2)])
    Bench("llama", 4).runner.copy_states([])


def test_a_recurrent_model_needs_slots() -> None:
    with pytest.raises(Unsupported, match="num_state_slots of at least 1"):
        ModelRunner(tiny("falcon_h1")[0], tables_for(torch.zeros((3, 4), dtype=torch.int32), 7), page_size=4)


def test_a_second_runner_of_the_same_model_finds_its_states_too() -> None:
    """The first has set the model's attention to pages; the shapes of the states are found all the same."""
    tables = tables_for(torch.zeros((3, 4), dtype=torch.int32), 7)
    model = tiny("falcon_h1")[0]
    runners = [ModelRunner(model, tables, page_size=4, num_state_slots=slots) for slots in (1, 2)]
    assert [len(next(runner.states.tensors())) for runner in runners] == [2, 3]  # type: ignore[union-attr]
