"""The `brigade` command."""
