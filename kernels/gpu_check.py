"""The kernels on a real GPU: right against the references, then timed against peers.

    python -m freehold.kernels.gpu_check            # check and time
    python -m freehold.kernels.gpu_check sweep      # time other tunings of paged decode

Exits 0 when all is right, 1 when a kernel differs from its reference, 3 when there is no GPU. References run on
the CPU in float32, so no setting of the GPU's matrix arithmetic can bend both sides alike.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from . import reference
from .cases import WILD_PAGE, DecodeCase, WriteCase, decode_inputs, write_inputs
from .errors import NoGpu

if TYPE_CHECKING:
    from .gpu_timing import Timing

TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""Largest |kernel - reference| / (1 + |reference|). In 16 bits the softmax weights and the output are rounded."""

FAR_PAGES_BYTES = 16 << 30
"""Free memory that `check_far_pages` asks for: two caches of 4 GiB, and room for a reduction over them."""

DECODE_SHAPES = tuple(
    DecodeCase(page_size=page_size, kv_heads=kv_heads, group=group, head_dim=head_dim, seq_tokens=lengths)
    for page_size, kv_heads, group, head_dim, lengths in (
        (1, 2, 1, 64, (1, 2, 63, 64, 65, 0)),
        (4, 3, 3, 64, (511, 512, 513, 5)),
        (16, 8, 4, 128, (1, 1025, 700, 16, 17)),
        (64, 8, 4, 128, (4096, 1, 64, 129)),
        (64, 1, 8, 128, (5000, 2048)),
        (128, 2, 16, 80, (127, 128, 129)),
        (16, 2, 40, 128, (33, 600)),
        (32, 2, 2, 256, (1, 100, 900)),
    )
)
WRITE_SHAPES = (
    WriteCase(n=1, page_size=16, kv_heads=3, head_dim=64),
    WriteCase(n=100, page_size=1, kv_heads=8, head_dim=128),
    WriteCase(n=1000, page_size=64, kv_heads=2, head_dim=80),
    WriteCase(n=77, page_size=4, kv_heads=40, head_dim=128),
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
    timings: tuple[Timing, ...]

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
    write_cases: Sequence[WriteCase] = WRITE_SHAPES,
) -> Iterator[Check]:
    """Compare the Triton kernels on `device` with the references, in every dtype."""
    for dtype in TOLERANCES:
        for seed, decode_case in enumerate(decode_cases):
            yield check_decode(replace(decode_case, dtype=dtype), seed, device)
        for seed, write_case in enumerate(write_cases):
            yield check_write(replace(write_case, dtype=dtype), seed, device)
        yield check_company(replace(decode_cases[-1], dtype=dtype), device)


def check_decode(case: DecodeCase, seed: int, device: str) -> Check:
    """`paged_decode` against its reference, everything unread poisoned."""
    from . import paged_decode_triton as kernel

    expected = reference.paged_decode(*decode_inputs(case, seed=seed).arguments())
    actual = kernel.paged_decode(*decode_inputs(case, seed=seed, device=device).arguments())
    return Check(name=f"decode {case.name}", error=distance(actual, expected), bound=TOLERANCES[case.dtype])


def check_write(case: WriteCase, seed: int, device: str) -> Check:
    """`write_kv` against its reference: whole caches, bit for bit."""
    from . import write_kv_triton as kernel

    expected, actual = write_inputs(case, seed=seed), write_inputs(case, seed=seed, device=device)
    reference.write_kv(*expected.arguments())
    kernel.write_kv(*actual.arguments())
    error = max(distance(actual.k_cache, expected.k_cache), distance(actual.v_cache, expected.v_cache))
    return Check(name=f"write {case.name}", error=error, bound=0.0)


def check_company(case: DecodeCase, device: str) -> Check:
    """The last request of the case alone, in a narrower table, gives the same bits as in its batch."""
    from . import paged_decode_triton as kernel

    inputs = decode_inputs(case, seed=0, device=device)
    together = kernel.paged_decode(*inputs.arguments())[-1:]
    width = -(-case.seq_tokens[-1] // case.page_size)
    alone = replace(
        inputs,
        query=inputs.query[-1:],
        page_table=inputs.page_table[-1:, :width].contiguous(),
        seq_tokens=inputs.seq_tokens[-1:],
    )
    error = distance(kernel.paged_decode(*alone.arguments()), together)
    return Check(name=f"decode alone = in company, {case.name}", error=error, bound=0.0)


def check_far_pages(device: str, elements: int = 2**31) -> Check:
    """Both kernels at the end of caches of more than `elements` elements, past what an int32 offset reaches."""
    from . import paged_decode_triton, write_kv_triton

    case = DecodeCase(page_size=64, kv_heads=8, group=4, head_dim=128, seq_tokens=(100, 700), dtype=torch.bfloat16)
    near = decode_inputs(case, seed=0, device=device)
    expected = paged_decode_triton.paged_decode(*near.arguments())
    shift = elements // near.k_cache[0].numel() + 1
    pages = near.k_cache.shape[0]
    caches = torch.zeros(2, shift + pages, *near.k_cache.shape[1:], dtype=case.dtype, device=device)
    key, value = (cache.flatten(0, 1) for cache in (near.k_cache, near.v_cache))
    slots = torch.arange(len(key), device=device) + shift * case.page_size
    write_kv_triton.write_kv(key, value, caches[0], caches[1], slots)
    table = torch.where(near.page_table == WILD_PAGE, WILD_PAGE, near.page_table + shift).to(torch.int32)
    far = replace(near, k_cache=caches[0], v_cache=caches[1], page_table=table)
    error = max(
        distance(paged_decode_triton.paged_decode(*far.arguments()), expected),
        distance(caches[0, shift:], near.k_cache),
        float(caches[:, :shift].any()),
    )
    return Check(name=f"write and decode past {elements} elements", error=error, bound=0.0)


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
        announce(f"not run  write and decode past 2**31 elements: it needs {FAR_PAGES_BYTES >> 30} GiB free")
    timings = []
    for shape in timing.DECODE_SHAPES:
        timings.append(timing.time_decode(shape, timing.graph_bench, device))
        announce(timing_line(timings[-1]))
    timings.append(timing.time_write(timing.WRITE_TOKENS, timing.graph_bench, device))
    announce(timing_line(timings[-1]))
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


def timing_line(row: Timing) -> str:
    return (
        f"{row.name:<44} {row.micros:9.1f} us {row.gigabytes_per_second:7.0f} GB/s"
        f" | {row.over_peer:5.2f} x {row.peer} | {row.over_copy:4.0%} of a copy"
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
