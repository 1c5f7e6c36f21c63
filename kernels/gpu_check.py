"""The kernels on a real GPU: right against the references, then timed against peers.

    python -m freehold.kernels.gpu_check            # check and time
    python -m freehold.kernels.gpu_check sweep      # time other tunings of paged decode

Exits 0 when all is right, 1 when a kernel differs from its reference, 3 when there is no GPU. References run on
the CPU in float32, so no setting of the GPU's matrix arithmetic can bend both sides alike.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from . import reference
from .cases import (
    WILD_PAGE,
    DecodeCase,
    ExtendCase,
    WriteCase,
    decode_inputs,
    extend_inputs,
    write_inputs,
)
from .errors import NoGpu

if TYPE_CHECKING:
    from .gpu_timing import ExtendTiming, Timing

TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""Largest |kernel - reference| / (1 + |reference|). In 16 bits the softmax weights and the output are rounded."""

FAR_PAGES_BYTES = 16 << 30
"""Free memory that `check_far_pages` asks for: two caches of 4 GiB, and room for a reduction over them."""

DECODE_SHAPES = tuple(
    DecodeCase(
        page_size=page_size,
        kv_heads=kv_heads,
        group=group,
        head_dim=head_dim,
        seq_tokens=lengths,
        window=window,
        sinks=sinks,
    )
    for page_size, kv_heads, group, head_dim, lengths, window, sinks in (
        (1, 2, 1, 64, (1, 2, 63, 64, 65, 0), 0, False),
        (4, 3, 3, 64, (511, 512, 513, 5), 0, False),
        (16, 8, 4, 128, (1, 1025, 700, 16, 17), 0, False),
        (64, 8, 4, 128, (4096, 1, 64, 129), 0, False),
        (64, 1, 8, 128, (5000, 2048), 0, True),
        (128, 2, 16, 80, (127, 128, 129), 0, False),
        (16, 2, 40, 128, (33, 600), 0, False),
        (1, 2, 3, 64, (1, 0, 7, 8, 200), 7, False),
        (64, 8, 8, 64, (4000, 1, 128, 129), 128, True),
        (16, 8, 4, 128, (5000, 1023, 1024, 1025, 3), 1024, False),
        (32, 2, 2, 256, (1, 100, 900), 600, True),
    )
)
EXTEND_SHAPES = tuple(
    ExtendCase(
        page_size=page_size,
        kv_heads=kv_heads,
        group=group,
        head_dim=head_dim,
        extend_tokens=tuple(new for new, _ in lengths),
        seq_tokens=tuple(tokens for _, tokens in lengths),
        window=window,
        sinks=sinks,
    )
    for page_size, kv_heads, group, head_dim, lengths, window, sinks in (
        (1, 2, 1, 64, ((1, 1), (130, 130), (0, 9), (1, 200), (128, 129)), 0, False),
        (4, 3, 3, 64, ((43, 43), (42, 500), (41, 64), (1, 65)), 0, True),
        (64, 8, 4, 128, ((700, 3000), (1, 64), (33, 97)), 0, False),
        (16, 8, 4, 128, ((1000, 1000), (31, 2048), (7, 900)), 128, True),
        (64, 8, 8, 64, ((17, 4000), (300, 300), (1, 129)), 128, True),
        (32, 2, 2, 256, ((100, 100), (65, 700)), 512, False),
        (1, 1, 6, 80, ((50, 90), (3, 3)), 1, False),
        (16, 1, 40, 128, ((5, 600), (70, 70)), 33, True),
        (16, 1, 200, 64, ((3, 20), (2, 130)), 0, True),
    )
)
WRITE_SHAPES = (
    WriteCase(n=1, page_size=16, kv_heads=3, head_dim=64),
    WriteCase(n=100, page_size=1, kv_heads=8, head_dim=128),
    WriteCase(n=1000, page_size=64, kv_heads=2, head_dim=80),
    WriteCase(n=77, page_size=4, kv_heads=40, head_dim=128),
    WriteCase(n=500, page_size=16, kv_heads=8, head_dim=64, peers=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One comparison. `error` is relative as in `TOLERANCES`, NaN where one side only has NaN."""

    name: str
    error: float
    bound: float

    @property
    def passed(self) -> bool:
        return self.error <= self.bound


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReport:
    """What a run on a GPU found."""

    device: str
    checks: tuple[Check, ...]
    timings: tuple[Timing | ExtendTiming, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)


def require_gpu() -> str:
    """The device to run on.

    Raises:
        NoGpu: torch sees no CUDA device.
    """
    if not torch.cuda.is_available():
        raise NoGpu("torch sees no CUDA device: run this on a machine with an NVIDIA GPU and a CUDA build of torch")
    return "cuda"


def check_kernels(
    device: str,
    decode_cases: Sequence[DecodeCase] = DECODE_SHAPES,
    extend_cases: Sequence[ExtendCase] = EXTEND_SHAPES,
    write_cases: Sequence[WriteCase] = WRITE_SHAPES,
) -> Iterator[Check]:
    """Compare the Triton kernels on `device` with the references, in every dtype."""
    for dtype in TOLERANCES:
        for seed, decode_case in enumerate(decode_cases):
            yield check_decode(replace(decode_case, dtype=dtype), seed, device)
        for seed, extend_case in enumerate(extend_cases):
            yield check_extend(replace(extend_case, dtype=dtype), seed, device)
        for seed, write_case in enumerate(write_cases):
            yield check_write(replace(write_case, dtype=dtype), seed, device)
        yield check_company(replace(decode_cases[-1], dtype=dtype), device)
        yield check_extend_company(replace(extend_cases[-1], dtype=dtype), device)


def check_decode(case: DecodeCase, seed: int, device: str) -> Check:
    """`paged_decode` against its reference, everything unread poisoned."""
    from . import paged_decode_triton as kernel

    here, there = decode_inputs(case, seed=seed), decode_inputs(case, seed=seed, device=device)
    expected = reference.paged_decode(*here.arguments(), **here.options())
    actual = kernel.paged_decode(*there.arguments(), **there.options())
    return _attention_check(f"decode {case.name}", actual, expected)


def check_extend(case: ExtendCase, seed: int, device: str) -> Check:
    """`paged_extend` against its reference, everything unread poisoned."""
    from . import paged_extend_triton as kernel

    here, there = extend_inputs(case, seed=seed), extend_inputs(case, seed=seed, device=device)
    expected = reference.paged_extend(*here.arguments(), **here.options())
    actual = kernel.paged_extend(*there.arguments(), **there.options())
    return _attention_check(f"extend {case.name}", actual, expected)


def check_write(case: WriteCase, seed: int, device: str) -> Check:
    """`write_kv` against its reference: whole caches, bit for bit."""
    from . import write_kv_triton as kernel

    expected, actual = write_inputs(case, seed=seed), write_inputs(case, seed=seed, device=device)
    reference.write_kv(*expected.arguments(), peers=expected.peers)
    kernel.write_kv(*actual.arguments(), peers=actual.peers)
    error = max(distance(actual.k_cache, expected.k_cache), distance(actual.v_cache, expected.v_cache))
    return Check(name=f"write {case.name}", error=error, bound=0.0)


def check_company(case: DecodeCase, device: str) -> Check:
    """The last request of the case alone, in a narrower table, gives the same bits as in its batch."""
    from . import paged_decode_triton as kernel

    inputs = decode_inputs(case, seed=0, device=device)
    together = kernel.paged_decode(*inputs.arguments(), **inputs.options())[-1:]
    width = -(-case.seq_tokens[-1] // case.page_size)
    alone = replace(
        inputs,
        query=inputs.query[-1:],
        page_table=inputs.page_table[-1:, :width].contiguous(),
        seq_tokens=inputs.seq_tokens[-1:],
    )
    error = distance(kernel.paged_decode(*alone.arguments(), **alone.options()), together)
    return Check(name=f"decode alone = in company, {case.name}", error=error, bound=0.0)


def check_extend_company(case: ExtendCase, device: str) -> Check:
    """The last sequence of the case alone, in a narrower table, gives the same bits as in its batch."""
    from . import paged_extend_triton as kernel

    inputs = extend_inputs(case, seed=0, device=device)
    new_tokens = case.extend_tokens[-1]
    together = kernel.paged_extend(*inputs.arguments(), **inputs.options())[-new_tokens:]
    width = -(-case.seq_tokens[-1] // case.page_size)
    alone = replace(
        inputs,
        query=inputs.query[-new_tokens:],
        page_table=inputs.page_table[-1:, :width].contiguous(),
        query_start=torch.tensor([0, new_tokens], dtype=torch.int32, device=device),
        seq_tokens=inputs.seq_tokens[-1:],
    )
    error = distance(kernel.paged_extend(*alone.arguments(), **alone.options()), together)
    return Check(name=f"extend alone = in company, {case.name}", error=error, bound=0.0)


def check_far_pages(device: str, elements: int = 2**31) -> Check:
    """All kernels at the end of caches of more than `elements` elements, past what an int32 offset reaches."""
    from . import paged_decode_triton, paged_extend_triton, write_kv_triton

    case = DecodeCase(page_size=64, kv_heads=8, group=4, head_dim=128, seq_tokens=(100, 700), dtype=torch.bfloat16)
    near = decode_inputs(case, seed=0, device=device)
    starts = torch.arange(len(case.seq_tokens) + 1, dtype=torch.int32, device=device)

    def attend(k_cache: torch.Tensor, v_cache: torch.Tensor, page_table: torch.Tensor) -> torch.Tensor:
        paged = near.query, k_cache, v_cache, page_table
        decoded = paged_decode_triton.paged_decode(*paged, near.seq_tokens, near.scale)
        return torch.stack([decoded, paged_extend_triton.paged_extend(*paged, starts, near.seq_tokens, near.scale)])

    expected = attend(near.k_cache, near.v_cache, near.page_table)
    shift = elements // near.k_cache[0].numel() + 1
    pages = near.k_cache.shape[0]
    caches = torch.zeros(2, shift + pages, *near.k_cache.shape[1:], dtype=case.dtype, device=device)
    key, value = (cache.flatten(0, 1) for cache in (near.k_cache, near.v_cache))
    peers = torch.arange(pages, dtype=torch.int32, device=device) + shift
    slots = torch.arange(len(key), device=device)
    write_kv_triton.write_kv(key, value, caches[0], caches[1], slots, peers=peers)
    table = torch.where(near.page_table == WILD_PAGE, WILD_PAGE, near.page_table + shift).to(torch.int32)
    error = max(
        distance(attend(caches[0], caches[1], table), expected),
        distance(caches[0, shift:], near.k_cache),
        float(caches[:, :shift].any()),
    )
    return Check(name=f"write, decode and extend past {elements} elements", error=error, bound=0.0)


def _attention_check(name: str, actual: torch.Tensor, expected: torch.Tensor) -> Check:
    """A reference that read what is poisoned, too, is an error."""
    error = distance(actual, expected) if bool(expected.isfinite().all()) else math.nan
    return Check(name=name, error=error, bound=TOLERANCES[expected.dtype])


def distance(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest |actual - expected| / (1 + |expected|); NaN if and where only one side is NaN."""
    a, e = actual.detach().cpu().to(torch.float64), expected.detach().cpu().to(torch.float64)
    apart = (a - e).abs() / (1 + e.abs())
    apart[a.isnan() & e.isnan()] = 0.0
    return float(apart.max()) if apart.numel() else 0.0


def run(announce: Callable[[str], object] = print) -> GpuReport:
    """Check and time on the GPU, telling each row as it comes.

    Raises:
        NoGpu: torch sees no CUDA device.
    """
    device = require_gpu()
    from . import gpu_timing as timing

    name = torch.cuda.get_device_name()
    announce(f"{name}, torch {torch.__version__}")
    checks = list(_told(check_kernels(device), announce))
    if torch.cuda.mem_get_info()[0] > FAR_PAGES_BYTES:
        checks += _told([check_far_pages(device)], announce)
    else:
        announce(f"not run  the kernels past 2**31 elements: it needs {FAR_PAGES_BYTES >> 30} GiB free")
    timings: list[Timing | ExtendTiming] = []
    for row in timing.time_all(timing.graph_bench, device):
        timings.append(row)
        announce(row.line)
    return GpuReport(device=name, checks=tuple(checks), timings=tuple(timings))


def sweep(announce: Callable[[str], object] = print) -> None:
    """Time tunings of paged decode around the default.

    Raises:
        NoGpu: torch sees no CUDA device.
    """
    device = require_gpu()
    from . import gpu_timing as timing

    for shape, tuning, micros in timing.sweep_decode(timing.DECODE_SHAPES, timing.graph_bench, device):
        announce(
            f"{shape.name}: split {tuning.split_tokens} stages {tuning.num_stages} "
            f"warps {tuning.num_warps}: {micros:.1f} us"
        )


def _told(checks: Iterable[Check], announce: Callable[[str], object]) -> Iterator[Check]:
    for check in checks:
        verdict = "ok" if check.passed else "DIFFERS"
        announce(f"{verdict:<8} {check.name}: {check.error:.2e}, bound {check.bound:.0e}")
        yield check


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 all right, 1 a kernel differs, 3 no GPU."""
    parser = argparse.ArgumentParser(description="Check and time the kernels on a GPU.")
    parser.add_argument("part", nargs="?", choices=("check", "sweep"), default="check")
    part = parser.parse_args(arguments).part
    try:
        if part == "sweep":
            sweep()
            return 0
        report = run()
    except NoGpu as error:
        print(f"no GPU: {error}", file=sys.stderr)
        return 3
    wrong = [check.name for check in report.checks if not check.passed]
    print(f"{len(report.checks) - len(wrong)} of {len(report.checks)} checks passed")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
