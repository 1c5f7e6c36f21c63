"""The text of one answer as its tokens come, cut at the first stop string."""

from collections.abc import Callable, Sequence

from freehold.impl.execution.detokenizer import Detokenizer


class TextStream:
    """Hands out text as soon as it is sure to belong to the answer.

    Text that may turn out to be the start of a stop string is held back until the tokens decide.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = ()) -> None:
        """`decode`: text of a token sequence. `stops`: none empty; the answer ends before the first one to occur."""
        self._detokenizer = Detokenizer(decode)
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """Take the next token; return the text that is sure now, possibly none."""
        return self._release(self._detokenizer.push([token]), self._undecided)

    def flush(self) -> str:
        """No token comes any more: return the rest."""
        return self._release(self._detokenizer.flush(), lambda: 0)

    def _release(self, text: str, undecided: Callable[[], int]) -> str:
        if self.stopped:
            return ""
        self._held += text
        found = [at for at in map(self._held.find, self._stops) if at >= 0]
        self.stopped = bool(found)
        end = min(found) if found else len(self._held) - undecided()
        sure, self._held = self._held[:end], self._held[end:]
        return sure

    def _undecided(self) -> int:
        """Length of the longest end of the held text with which some stop string begins."""
        longest = max(map(len, self._stops), default=0)
        for size in range(min(longest - 1, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self._stops if len(stop) > size):
                return size
        return 0
