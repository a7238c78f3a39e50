"""Fewer bytes for activations, gradients and weights."""
