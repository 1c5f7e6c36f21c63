"""Keeps transformers' progress bar off a terminal that is not its own."""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging


@contextmanager
def quiet_loading() -> Iterator[None]:
    """No progress bar of transformers inside; afterwards it is as it was."""
    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()
