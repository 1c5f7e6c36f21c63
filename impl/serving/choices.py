"""What can be chosen by name. Apart, so that a command line knows it without loading torch."""

from typing import Literal

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Policy = Literal["first_come", "longest_prefix", "priority"]
Retraction = Literal["youngest", "length", "priority"]
OnBreach = Literal["off", "warn", "dump", "raise"]
KvCheck = Literal["off", "canary", "poison"]
