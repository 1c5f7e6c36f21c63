"""Typed errors: each says what to do, and carries the exit code of a command that ends with it.

Exit codes mean the same everywhere: 0 holds, 1 a rule is broken, 2 invalid input, 3 unsupported here.
"""


class FreeholdError(Exception):
    """Base of every error that is meant for the person at the terminal."""

    exit_code = 2


class InvalidInput(FreeholdError):
    """What was given cannot be used: a file, a prompt, a configuration."""


class Unsupported(FreeholdError):
    """Sound input that this installation, machine or version cannot serve."""

    exit_code = 3


class RuleBroken(FreeholdError):
    """A rule of the law does not hold."""

    exit_code = 1
