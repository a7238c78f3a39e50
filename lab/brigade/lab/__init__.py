"""Whole fleets on one machine: shaped links, emulated devices, churn."""
