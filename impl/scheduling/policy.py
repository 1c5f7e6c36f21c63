"""Who goes next, and who gives way.

Age is the order of arrival. Two rules make every request finish that fits the pool alone: the first of the waiting ones
is never passed over by one that does not fit, and of those that hold KV the oldest never gives way.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Protocol

from freehold.impl.memory.cache import KvCache
from freehold.impl.scheduling.request import Request
from freehold.spec.errors import RuleBroken


class AdmissionPolicy(Protocol):
    """Chooses which waiting requests to try."""

    def candidates(self, waiting: Mapping[str, Request], limit: int, cache: KvCache) -> list[Request]:
        """At most `limit` of `waiting`, in the order in which to admit them; the first that doesn't fit ends it."""
        ...


class FirstCome:
    """In the order of the queue."""

    def candidates(self, waiting: Mapping[str, Request], limit: int, cache: KvCache) -> list[Request]:
        """The first `limit` of the queue."""
        return list(islice(waiting.values(), limit))


class LongestPrefix:
    """The head of the queue, then those that share most with the prefix tree.

    The head keeps its right of way so that nobody starves. Only the first `window` requests are looked at: a match
    costs time for every token.
    """

    def __init__(self, window: int = 128) -> None:
        self.window = window

    def candidates(self, waiting: Mapping[str, Request], limit: int, cache: KvCache) -> list[Request]:
        """The head, then up to `limit` - 1 others with the longest prefix hits; equal hits keep the queue's order."""
        looked_at = list(islice(waiting.values(), self.window))
        others = sorted(looked_at[1:], key=lambda request: -prefix_hit_tokens(request, cache))
        return (looked_at[:1] + others)[:limit]


class Priority:
    """The most urgent first, and those of one priority in the order of arrival.

    A request waits as long as more urgent ones keep arriving: its client asked for that, and no bound is proved.
    """

    def candidates(self, waiting: Mapping[str, Request], limit: int, cache: KvCache) -> list[Request]:
        """The `limit` most urgent ones."""
        return sorted(waiting.values(), key=lambda request: (-request.priority, request.arrival))[:limit]


def prefix_hit_tokens(request: Request, cache: KvCache) -> int:
    """Tokens of a waiting request whose KV is there already, in its session's slot or in the tree."""
    if request.session and request.session.kv:
        return cache.usable_tokens(request.session.kv, request.kept_tokens)
    return cache.match(request.tokens(0, request.length_tokens - 1)).matched_tokens


VictimKey = Callable[[Request], tuple[int, ...]]
"""Orders those that hold KV: the greatest gives way first."""


def youngest(request: Request) -> tuple[int, ...]:
    """Who came last gives way: proved to let everybody finish."""
    return (request.arrival,)


def least_done(request: Request) -> tuple[int, ...]:
    """Who has generated least gives way, and of these the longest prompt: the least work is lost."""
    return (request.prompt_tokens - request.length_tokens, request.prompt_tokens, request.arrival)


def least_urgent(request: Request) -> tuple[int, ...]:
    """Who matters least gives way, and of these the youngest."""
    return (-request.priority, request.arrival)


def victim(holders: Iterable[Request], key: VictimKey) -> Request:
    """Who gives way when pages run out: never the oldest, so that somebody gets on whatever the key says.

    Raises RuleBroken when only one is left: alone, every request fits.
    """
    oldest, *others = sorted(holders, key=lambda request: request.arrival)
    if not others:
        raise RuleBroken(f"pages ran out for {oldest}, which has the pool to itself: pages have leaked")
    return max(others, key=key)
