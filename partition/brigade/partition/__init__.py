"""Which node trains which blocks, in which order, and what that will cost."""
