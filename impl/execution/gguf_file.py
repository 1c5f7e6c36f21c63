"""Reads a GGUF file's header: metadata, and where each tensor's bytes lie.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian). The
reader of the `gguf` package makes an array of every string of the vocabulary, which takes seconds; this one
reads the same header in a fraction, and checks every length against the file's size, so that a truncated file
is told apart from a sound one.
"""

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import constants, quants
from numpy.typing import NDArray

from freehold.spec.errors import InvalidInput, Unsupported

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_COUNT = _SCALARS[10]
_TYPE = _SCALARS[4]


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor as stored.

    shape: as torch has it (GGUF lists the dimensions the other way round).
    kind: the number of its ggml type. data: uint8 `[*shape[:-1], bytes of a row]`, a view of the mapped file.
    """

    name: str
    shape: tuple[int, ...]
    kind: int
    data: NDArray[np.uint8]

    def dequantise(self) -> NDArray[np.float32]:
        """The values, float32 of `shape`. Raises Unsupported for a type that the gguf package cannot read."""
        try:
            values: NDArray[np.float32] = quants.dequantize(self.data, constants.GGMLQuantizationType(self.kind))
        except (NotImplementedError, ValueError) as error:
            raise Unsupported(
                f"tensor {self.name} has ggml type {self.kind}, which the gguf package cannot dequantise: {error}"
            ) from error
        return np.require(values.reshape(self.shape), requirements="W")  # plain float32 is a view of the file


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A GGUF file's metadata (plain Python values) and tensors by name."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]

    def require(self, key: str) -> Any:
        """The metadata value of `key`. Raises InvalidInput where the file has none."""
        if key not in self.metadata:
            raise InvalidInput(f"{self.path} lacks the metadata {key!r}: it is no complete model file")
        return self.metadata[key]


def read_gguf(path: Path) -> GgufFile:
    """Read the header of `path` and map its tensors.

    Raises InvalidInput for a missing, foreign, truncated or corrupt file, Unsupported for another GGUF
    version.
    """
    try:
        content: NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r")
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise InvalidInput(f"cannot read {path}: {error}") from error
    if content[:4].tobytes() != _MAGIC:
        raise InvalidInput(f"{path} is no GGUF file: it does not begin with {_MAGIC.decode()!r}")
    cursor = _Cursor(memoryview(content.data), 4)
    try:
        return _read(path, content, cursor)
    except (struct.error, IndexError, UnicodeDecodeError, KeyError, OverflowError, ValueError) as error:
        raise InvalidInput(
            f"{path} is truncated or corrupt near byte {cursor.position} of {len(content)} ({error}): fetch it again"
        ) from error


class _Cursor:
    """Reads little-endian values one after the other."""

    def __init__(self, content: memoryview, position: int) -> None:
        self._content = content
        self.position = position

    def scalar(self, form: struct.Struct) -> Any:
        (value,) = form.unpack_from(self._content, self.position)
        self.position += form.size
        return value

    def count(self) -> int:
        """A length, which can't be beyond what is left of the file."""
        value: int = self.scalar(_COUNT)
        if value > len(self._content) - self.position:
            raise ValueError(f"a length of {value} reaches beyond the end")
        return value

    def string(self) -> str:
        start = self.position + _COUNT.size
        self.position = start + self.count()
        return str(self._content[start : self.position], "utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.scalar(_SCALARS[kind])
        element = self.scalar(_TYPE)
        length = self.count()
        if element == _STRING:
            return [self.string() for _ in range(length)]
        form = struct.Struct(f"<{length}{_SCALARS[element].format[-1]}")
        values = list(form.unpack_from(self._content, self.position))
        self.position += form.size
        return values


def _read(path: Path, content: NDArray[np.uint8], cursor: _Cursor) -> GgufFile:
    version = cursor.scalar(_TYPE)
    if version not in _VERSIONS:
        raise Unsupported(f"{path} is GGUF version {version} (or big-endian); versions {_VERSIONS} are read")
    num_tensors = cursor.count()
    num_keys = cursor.count()
    metadata: dict[str, Any] = {}
    for _ in range(num_keys):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalar(_TYPE))
    headers: list[tuple[str, tuple[int, ...], int, int]] = []
    for _ in range(num_tensors):
        name = cursor.string()
        dimensions = [cursor.scalar(_COUNT) for _ in range(cursor.scalar(_TYPE))]
        headers.append((name, tuple(reversed(dimensions)), cursor.scalar(_TYPE), cursor.scalar(_COUNT)))
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"an alignment of {alignment!r}")
    base = -(-cursor.position // alignment) * alignment
    tensors = {name: _map(content, name, shape, kind, base + offset) for name, shape, kind, offset in headers}
    return GgufFile(path, metadata, tensors)


def _map(content: NDArray[np.uint8], name: str, shape: tuple[int, ...], kind: int, start: int) -> GgufTensor:
    block, block_bytes = constants.GGML_QUANT_SIZES[constants.GGMLQuantizationType(kind)]
    row_bytes = shape[-1] // block * block_bytes
    rows = math.prod(shape[:-1])
    stop = start + rows * row_bytes
    if shape[-1] % block or stop > len(content):
        raise ValueError(f"tensor {name} of shape {shape} ends at byte {stop}")
    return GgufTensor(name, shape, kind, content[start:stop].reshape(*shape[:-1], row_bytes))
