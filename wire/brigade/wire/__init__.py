"""What nodes and the coordinator say to each other."""
