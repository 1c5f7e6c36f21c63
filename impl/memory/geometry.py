"""The sizes of a cache, checked once where they come in."""

from dataclasses import dataclass

from freehold.spec.arithmetic import ceil_pages
from freehold.spec.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGeometry:
    """How much there is of everything. Raises InvalidInput for sizes with which no engine could run.

    page_size: tokens in a page, a power of two.
    num_pages: pages that can be owned, with ids 1..num_pages.
    num_rows: rows of the page table that can be bound, with ids 1..num_rows.
    max_context_tokens: width of a row in tokens, the longest that prompt and output can be together.
    window_tokens: tokens before the next one that a sliding-window layer looks back on; 0 where there is no such layer.
    num_swa_pages: pages of the sliding-window layers, with ids 1..num_swa_pages; 0 where there is no window.
    num_state_slots: slots for recurrent states, with ids 1..num_state_slots; 0 where the model has none.
    """

    page_size: int
    num_pages: int
    num_rows: int
    max_context_tokens: int
    window_tokens: int = 0
    num_swa_pages: int = 0
    num_state_slots: int = 0

    def __post_init__(self) -> None:
        if self.page_size < 1 or self.page_size & (self.page_size - 1):
            raise InvalidInput(f"page_size must be a power of two (1, 2, 4, ...), not {self.page_size}")
        if self.num_rows < 1:
            raise InvalidInput(f"num_rows must be at least 1, not {self.num_rows}")
        if self.max_context_tokens < 2:
            raise InvalidInput(
                f"max_context_tokens must leave room for a prompt and an output, not {self.max_context_tokens}"
            )
        if self.num_pages < self.row_pages:
            raise InvalidInput(
                f"num_pages={self.num_pages} cannot hold one request of max_context_tokens={self.max_context_tokens}: "
                f"give at least {self.row_pages} pages of {self.page_size}, or lower max_context_tokens"
            )
        if min(self.window_tokens, self.num_swa_pages, self.num_state_slots) < 0:
            raise InvalidInput("window_tokens, num_swa_pages and num_state_slots must not be negative")
        self._check_window()

    def _check_window(self) -> None:
        if self.num_swa_pages and not self.window_tokens:
            raise InvalidInput("num_swa_pages needs window_tokens: without a sliding window there are no swa pages")
        least = min(self.row_pages, self.window_pages + 2)
        if self.window_tokens and self.num_swa_pages < least:
            raise InvalidInput(
                f"num_swa_pages={self.num_swa_pages} cannot hold one request with a window of {self.window_tokens} "
                f"tokens: give at least {least} pages of {self.page_size}"
            )

    @property
    def row_pages(self) -> int:
        """Entries in a row of the page table."""
        return ceil_pages(self.max_context_tokens, self.page_size)

    @property
    def window_pages(self) -> int:
        """Pages behind a page border that the next token looks back on."""
        return ceil_pages(self.window_tokens, self.page_size)

    @property
    def longest_chunk_tokens(self) -> int:
        """Tokens that one request may compute in a step, so that its window and its chunk fit the swa pool alone."""
        if not self.window_tokens or self.num_swa_pages >= self.row_pages:
            return self.max_context_tokens
        return (self.num_swa_pages - self.window_pages - 1) * self.page_size
