"""Who takes part, which plan holds, and what to do when somebody goes."""
