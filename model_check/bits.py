"""Bits of many states at once: codes turned on their side, and back.

Codes of N states are K words a state. On their side, they are W = N / 64 words for each bit of a code, where word w
has that bit of the states w, W + w, 2W + w, …: then one operation on a word works on 64 states.
"""

from __future__ import annotations

import torch

Tensor = torch.Tensor
WORD_BITS = 64


def signed(word: int) -> int:
    """A 64-bit word as the integer that PyTorch takes for it."""
    return word - (1 << WORD_BITS) if word >> WORD_BITS - 1 else word


def turned(square: Tensor) -> Tensor:
    """Bit i of word j and bit j of word i change places, for words `[*, 64, W]`; W such squares lie side by side."""
    half, mask = WORD_BITS // 2, (1 << WORD_BITS // 2) - 1
    square = square.contiguous().clone()
    while half:
        pairs = square.view(*square.shape[:-2], WORD_BITS // (2 * half), 2, half, square.shape[-1])
        high, low = pairs.select(-3, 0), pairs.select(-3, 1)
        swap = (high >> half).bitwise_xor_(low).bitwise_and_(signed(mask))
        low ^= swap
        high ^= swap.bitwise_left_shift_(half)
        half //= 2
        mask ^= mask << half
    return square


def columns(codes: Tensor) -> Tensor:
    """Codes `[K, N]` on their side, `[64 K, W]`. W is a power of two; states that are not there have no bit set."""
    width = 1 << max(0, -(-codes.shape[1] // WORD_BITS) - 1).bit_length()
    padded = torch.nn.functional.pad(codes, (0, width * WORD_BITS - codes.shape[1]))
    return turned(padded.view(codes.shape[0], WORD_BITS, width)).view(-1, width)


def words(bits: Tensor) -> Tensor:
    """Columns `[64 K, W]` as codes `[K, 64 W]`."""
    return turned(bits.view(-1, WORD_BITS, bits.shape[1])).view(-1, WORD_BITS * bits.shape[1])


def within(count: int, width: int, device: torch.device) -> Tensor:
    """Words `[W]` with a bit for each of the first `count` states."""
    there = torch.arange(WORD_BITS * width, device=device).view(WORD_BITS, width) < count
    return (there.to(torch.int64) << torch.arange(WORD_BITS, device=device).unsqueeze(1)).sum(0)


def pairs(bits: Tensor) -> tuple[Tensor, Tensor]:
    """Where bits `[B, W]` are set: the number of the column, ascending, and of the state. W is a power of two."""
    width = bits.shape[1]
    shift = width.bit_length() - 1
    octets = bits.view(torch.uint8).view(-1)
    there = octets.nonzero().view(-1)
    spread = torch.arange(256, device=bits.device).unsqueeze(1) >> torch.arange(8, device=bits.device) & 1
    hits = (
        spread.to(torch.uint8)
        .view(torch.int64)
        .view(-1)[octets[there].to(torch.int64)]
        .view(torch.uint8)
        .nonzero()
        .view(-1)
    )
    octet = there[hits >> 3]
    bit = ((octet & 7) << 3) + (hits & 7)
    return octet >> shift + 3, (bit << shift) + (octet >> 3 & width - 1)
