"""The daemon that trains one stage."""
