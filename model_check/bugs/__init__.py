"""Public bugs of serving engines as small variants of the law: see `bug.Bug`, and `bank.BUGS` for all of them."""
