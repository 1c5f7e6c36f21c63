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
    """

    page_size: int
    num_pages: int
    num_rows: int
    max_context_tokens: int

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

    @property
    def row_pages(self) -> int:
        """Entries in a row of the page table."""
        return ceil_pages(self.max_context_tokens, self.page_size)
