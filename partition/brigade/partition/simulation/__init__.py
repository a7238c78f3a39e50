"""A run on paper: discrete events, driven by the cores that nodes run, with costs instead of tensors."""
