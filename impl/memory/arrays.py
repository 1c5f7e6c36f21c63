"""The two arrays that memory is made of: token ids and page ids, both int32 and one-dimensional."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from freehold.spec.errors import InvalidInput

Tokens = NDArray[np.int32]
"""Token ids, shape [tokens]."""

Pages = NDArray[np.int32]
"""Page ids 1..N in row order, shape [pages]; 0 is padding and never in such an array."""


def as_tokens(ids: Sequence[int] | Tokens) -> Tokens:
    """Token ids as an array of their own, shape [len(ids)].

    Raises InvalidInput when an id is negative, too large for int32, or no integer.
    """
    try:
        wide = np.asarray(ids)
        if wide.size and not np.issubdtype(wide.dtype, np.integer):
            raise InvalidInput("token ids must be integers: encode the text with the model's tokenizer first")
        if wide.ndim != 1:
            raise InvalidInput(f"token ids must be one flat list, not {wide.ndim}-dimensional")
    except (ValueError, OverflowError) as error:
        raise InvalidInput(f"token ids must be one flat list of integers: {error}") from error
    if wide.size and (int(wide.min()) < 0 or int(wide.max()) > np.iinfo(np.int32).max):
        raise InvalidInput("token ids must lie in [0, 2**31): encode the text with the model's tokenizer")
    return wide.astype(np.int32)
