"""The page that shows one experiment, or several beside each other."""
