"""The house rules that a machine can check, one module a rule.

Each module has PURPOSE (one line) and run(root) -> list[str], the violations.
A module may also have notes(root) -> list[str]: worth a look, never a failure.
"""

NAMES = (
    "layers",
    "size",
    "op_table",
    "launch",
    "tree",
    "dead_code",
    "portable",
    "copies",
    "receipts",
    "claims",
    "doc_links",
    "words",
    "sentences",
    "width",
    "chip",
    "casters",
    "chosen",
    "commits",
)
