"""Demonstrations that run closed-loop: `vivace demo reach`."""
