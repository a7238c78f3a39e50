"""A model and data of one's own for Bucket Brigade: points on spiral arms, and which arm they belong to."""
