"""Errors of the kernels. Each says what the caller has to change."""

from __future__ import annotations


class KernelError(Exception):
    """Base of every error this package raises."""


class BadArgument(KernelError, ValueError):
    """A tensor has the wrong shape, type, device or layout for the kernel it was given to."""


class SlotOutOfRange(KernelError, IndexError):
    """A slot, a page or a length points outside the cache (only the reference looks at the values)."""


class NoTriton(KernelError, ImportError):
    """Tensors are on a CUDA device, but Triton can't be imported."""


class NoGpu(KernelError, RuntimeError):
    """A check needs a CUDA device, and there is none."""


class AotFailed(KernelError, RuntimeError):
    """A kernel didn't compile ahead of time, or its report can't be read."""
