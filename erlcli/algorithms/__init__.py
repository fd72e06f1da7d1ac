"""One file an algorithm family; `registry` finds them by name."""
