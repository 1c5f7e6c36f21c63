"""Recurrent states of state-space layers, kept in slots: one slot is one sequence's state in every layer.

transformers' own cache objects carry the states through a model, and update them in place. So a step gets a cache
whose tensors are views of the slot, and there is nothing to load or to store. A step that fails on its way leaves the
slots of its requests half updated: whoever goes on from them starts afresh, or from a copy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, LinearAttentionCacheLayerMixin

from freehold.spec.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class LayerState:
    """The states of one layer by slot. conv, recurrent: `[slots + 1, ...]` by state index; slot 0 is padding."""

    layer: int
    conv: dict[int, Tensor]
    recurrent: dict[int, Tensor]


@dataclass(frozen=True, slots=True)
class StateStorage:
    """States of all layers that keep one, in slots 1..num_slots."""

    config: Any
    layers: tuple[LayerState, ...]
    num_slots: int

    @classmethod
    def allocate(cls, model: Any, num_slots: int) -> "StateStorage":
        """Zeroed states. Runs one token through the model, since only its layers know the shapes of their states.

        The model must attend by transformers' own means. Raises RuntimeError where the device has no room.
        """
        config = model.config.get_text_config(decoder=True)
        probe = DynamicCache(config=config)
        with torch.inference_mode():
            model(input_ids=torch.zeros((1, 1), dtype=torch.int64, device=model.device), past_key_values=probe)
        layers = []
        for index, layer in enumerate(probe.layers):
            if isinstance(layer, LinearAttentionCacheLayerMixin) and any(layer.is_conv_states_initialized.values()):
                conv = _slots_like(layer.conv_states, num_slots)
                layers.append(LayerState(index, conv, _slots_like(layer.recurrent_states, num_slots)))
        return cls(config, tuple(layers), num_slots)

    def tensors(self) -> Iterator[Tensor]:
        """Every state tensor, `[slots + 1, ...]`."""
        for layer in self.layers:
            yield from layer.conv.values()
            yield from layer.recurrent.values()

    def cache(self, slot: int, *, fresh: bool) -> Any:
        """A cache of transformers for one step, whose states are those of `slot`; with `fresh` they are not read.

        To its layers that attend it is an empty one: they see the step's own keys, and paged attention the others.
        """
        cache = DynamicCache(config=self.config)
        for state in self.layers:
            layer = cache.layers[state.layer]
            for index, conv in state.conv.items():
                layer.conv_states[index] = conv[slot : slot + 1]
                layer.conv_kernel_size[index] = conv.shape[-1]
                layer.is_conv_states_initialized[index] = True
                layer.has_previous_state[index] = not fresh
            for index, recurrent in state.recurrent.items():
                layer.recurrent_states[index] = recurrent[slot : slot + 1]
                layer.is_recurrent_states_initialized[index] = True
        return cache

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy states from slot to slot, (source, target) each, one pair after the other."""
        for source, target in pairs:
            for state in self.tensors():
                state[target].copy_(state[source])

    def check(self, slots: Sequence[int]) -> None:
        """Raise InvalidInput unless each of `slots` can hold a state."""
        for slot in slots:
            if not 0 < slot <= self.num_slots:
                raise InvalidInput(f"state slot {slot} does not exist: slots are 1..{self.num_slots}")

    def check_apart(self, slots: Sequence[int]) -> None:
        """Raise InvalidInput unless these are slots, no two the same."""
        self.check(slots)
        taken: set[int] = set()
        for slot in slots:
            if slot in taken:
                raise InvalidInput(f"state slot {slot} is given to two requests of one step")
            taken.add(slot)


def _slots_like(states: dict[int, Tensor | None], num_slots: int) -> dict[int, Tensor]:
    return {
        index: torch.zeros((num_slots + 1, *state.shape[1:]), dtype=state.dtype, device=state.device)
        for index, state in states.items()
        if state is not None
    }
