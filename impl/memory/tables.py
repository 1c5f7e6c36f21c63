"""What an executor may read of the memory: where tokens lie. Nobody but the memory writes it."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class KvTables:
    """The tables that a forward step reads, all on the host.

    page_table: int32 [num_rows + 1, row_pages]; entry i of a row is the page behind the tokens
        [i * page_size, (i + 1) * page_size), 0 where there is none. Row 0 is padding.
    peers: int32 [num_pages + 1]; the swa page of each page, 0 where it has none. A layer with a sliding window keeps
        the KV of a token in slot peers[page] * page_size + offset of its own caches.
    generations, swa_generations: int64 [num_pages + 1], [num_swa_pages + 1]; how often each page was given out.
    """

    page_table: Tensor
    peers: Tensor
    generations: Tensor
    swa_generations: Tensor

    @property
    def num_pages(self) -> int:
        """Pages that can be owned; their ids are 1..num_pages."""
        return len(self.peers) - 1

    @property
    def num_swa_pages(self) -> int:
        """Pages of the sliding-window layers; 0 where the model has none."""
        return len(self.swa_generations) - 1
