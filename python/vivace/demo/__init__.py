"""Demonstrations: `vivace demo reach`, which runs closed-loop, and `vivace demo colocate`."""
