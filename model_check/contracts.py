"""Contracts of the page arithmetic, checked by CrossHair for all integers.

CrossHair runs the real functions on symbolic integers and asks Z3 about each path. A condition counts only when it was
*confirmed over all paths*: one that CrossHair gave up on, or could not even reach, is a gap.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from types import ModuleType

from freehold.spec import arithmetic

_LINE = re.compile(r"^(?P<file>.*?):(?P<line>\d+): (?P<level>\w+): (?P<text>.*)$")


@dataclass(frozen=True, slots=True)
class ContractReport:
    """How many postconditions there are, how many were confirmed, and what was said of the others."""

    conditions: int
    confirmed: int
    problems: tuple[str, ...]
    seconds: float


def conditions_of(module: ModuleType) -> int:
    """The postconditions written in a module's docstrings."""
    functions = [f for _, f in inspect.getmembers(module, inspect.isfunction) if f.__module__ == module.__name__]
    return sum(line.strip().startswith("post:") for f in functions for line in (f.__doc__ or "").splitlines())


def check(module: ModuleType = arithmetic, seconds_a_condition: int = 20) -> ContractReport:
    """Run CrossHair over a module that is importable by its name."""
    started = time.perf_counter()
    command = [
        sys.executable, "-m", "crosshair", "check", module.__name__, "--analysis_kind", "PEP316", "--report_all",
        "--per_condition_timeout", str(seconds_a_condition),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    confirmed, problems = 0, []
    for line in done.stdout.splitlines():
        match = _LINE.match(line)
        if match is not None and match["text"].startswith("Confirmed"):
            confirmed += 1
        elif line.strip():
            problems.append(f"{module.__name__}:{match['line']}: {match['text']}" if match else line)
    wanted = conditions_of(module)
    if confirmed != wanted and not problems:
        problems.append(f"{wanted - confirmed} conditions were not looked at: {done.stderr.strip()[-300:]}")
    return ContractReport(wanted, confirmed, tuple(problems), time.perf_counter() - started)
