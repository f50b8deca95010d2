"""A differential fuzzer over the op table: draws valid calls that nobody wrote down and holds each to its op's float64 reference."""

MODES = {"values": 6, "hostile": 3, "chains": 1}  # mode -> its part of the time
