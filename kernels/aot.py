"""Compile Triton kernels ahead of time and read off what limits them: no GPU and no driver needed.

A kernel that spills, that outgrows shared memory or whose loop waits for each load right after issuing it
gives right results, slowly; no test of values sees it. The compiled object does: `compile_variant` compiles
one set of constants for one architecture with the assembler that Triton's wheel carries, and reports
registers, stack, shared memory, the depth of the software pipeline and the matrix instructions used.
`violations` holds a report against a budget.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from .errors import AotFailed

SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024}
"""Shared memory that one program may have, by architecture (CUDA programming guide, technical specifications)."""

MatrixUnit = Literal["none", "mma.sync", "wgmma"]

_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")
_WAIT = re.compile(r"async_wait\b.*\bnum = (\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class AotVariant:
    """One kernel with its argument types and constants fixed, as a launch would fix them."""

    name: str
    kernel: Any
    """A `triton.jit` function."""
    types: Mapping[str, str]
    """Triton's type of each argument that isn't a constant: "*bf16", "i32", ..."""
    constants: Mapping[str, int | str | None]
    """None for a pointer that the launch leaves out."""
    num_warps: int
    num_stages: int = 3
    aligned: tuple[str, ...] = ()
    """Arguments divisible by 16, besides the pointers; a launch finds out by looking at the values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AotReport:
    """What the compiler made of a variant."""

    arch: int
    registers: int
    """A thread."""
    stack_bytes: int
    """A thread's local memory. Not 0 means that registers were spilled or indexed at run time."""
    shared_bytes: int
    wait_depth: int | None
    """Copies to shared memory that may still fly while the loop's arithmetic runs: the smallest number that a wait
    inside a loop leaves outstanding. 0 means no prefetch, None no asynchronous copy in any loop."""
    matrix_unit: MatrixUnit
    wide_copies: int
    """16-byte asynchronous copies to shared memory, in instructions."""
    wide_loads: int
    """16-byte loads from device memory to registers, in instructions."""
    ttir: str
    """The kernel before layouts are chosen, for checks of its arithmetic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AotBudget:
    """What a report must keep to, beside no stack and the architecture's shared memory."""

    registers: int
    wait_depth: int | None = None
    """The least depth; None where the kernel has no loop over memory to prefetch."""


def compile_variant(variant: AotVariant, arch: int) -> AotReport:
    """Compile for compute capability `arch` (80, 90).

    Raises:
        AotFailed: the compiler or the disassembler didn't do its part; the cause is chained.
    """
    names = list(variant.kernel.arg_names)
    missing = set(names) - set(variant.types) - set(variant.constants)
    if missing:
        raise AotFailed(f"{variant.name}: give a type or a value for {sorted(missing)}")
    source = ASTSource(
        variant.kernel,
        {name: variant.types.get(name, "constexpr") for name in names},
        {(names.index(name),): value for name, value in variant.constants.items()},
        {
            (index,): [["tt.divisibility", 16]]
            for index, name in enumerate(names)
            if variant.types.get(name, "").startswith("*") or name in variant.aligned
        },
    )
    options = {"num_warps": variant.num_warps, "num_stages": variant.num_stages}
    try:
        compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    except Exception as error:
        raise AotFailed(f"{variant.name} does not compile for sm_{arch}") from error
    registers, stack_bytes = _resource_usage(compiled.asm["cubin"])
    ptx = compiled.asm["ptx"]
    return AotReport(
        arch=arch,
        registers=registers,
        stack_bytes=stack_bytes,
        shared_bytes=compiled.metadata.shared,
        wait_depth=wait_depth(compiled.asm["ttgir"]),
        matrix_unit="wgmma" if "wgmma.mma_async" in ptx else "mma.sync" if "mma.sync" in ptx else "none",
        wide_copies=len(re.findall(r"cp\.async\.cg\.shared\.global .*, 0x10,", ptx)),
        wide_loads=len(re.findall(r"\bld\.global(?:\.\w+)*\.v(?:4\.b32|2\.b64)\b", ptx)),
        ttir=compiled.asm["ttir"],
    )


def violations(report: AotReport, budget: AotBudget) -> list[str]:
    """Every way in which the report breaks the budget, in words; empty when it keeps to it."""
    found = []
    if report.registers > budget.registers:
        found.append(f"{report.registers} registers, budget {budget.registers}")
    if report.stack_bytes:
        found.append(f"{report.stack_bytes} bytes of stack: registers spill")
    if report.shared_bytes > SHARED_BYTES[report.arch]:
        found.append(f"{report.shared_bytes} bytes of shared memory, sm_{report.arch} has {SHARED_BYTES[report.arch]}")
    if budget.wait_depth is not None and (report.wait_depth or 0) < budget.wait_depth:
        found.append(f"wait depth {report.wait_depth}, budget {budget.wait_depth}: loads are not prefetched")
    return found


def wait_depth(ttgir: str) -> int | None:
    """The smallest number of copies that a wait inside a loop leaves in flight, None without such a wait.

    The text is indented by nesting, so a loop ends at the first line that closes at the loop's own indentation.
    """
    depths: list[int] = []
    loop_indents: list[int] = []
    for line in ttgir.splitlines():
        indent = len(line) - len(line.lstrip())
        if loop_indents and indent == loop_indents[-1] and line.lstrip().startswith("}"):
            loop_indents.pop()
        if "scf.for" in line or "scf.while" in line:
            loop_indents.append(indent)
        match = _WAIT.search(line)
        if match and loop_indents:
            depths.append(int(match.group(1)))
    return min(depths, default=None)


def _resource_usage(cubin: bytes) -> tuple[int, int]:
    """(registers, bytes of stack and local memory) a thread, from the disassembler in Triton's wheel."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        try:
            done = subprocess.run(
                [str(tool), "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError) as error:
            raise AotFailed(f"{tool} did not read the compiled kernel") from error
    match = _USAGE.search(done.stdout)
    if match is None:
        raise AotFailed(f"{tool} reported no resource usage: {done.stdout!r}")
    registers, stack_bytes, local_bytes = map(int, match.groups())
    return registers, max(stack_bytes, local_bytes)
