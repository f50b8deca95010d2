"""Where a patch's text stands in a source, whatever the layout: planted faults and views of kernels name code, not lines.

A text is found as it is written; where it is not, as its tokens: spaces, line breaks and comments of the source do not count, so that
a file that is laid out or commented anew keeps its faults.
"""
from tools.fingerprint import TOKEN


def tokens(text):
    """(token, begin, end) of what is code."""
    return [(m.group(), m.start(), m.end()) for m in TOKEN.finditer(text) if not m.group().isspace() and not m.group().startswith(("//", "/*"))]


def places(source: str, text: str) -> list[tuple[int, int]]:
    """Begin and end of each occurrence, in order, none within another."""
    out, at = [], source.find(text)
    while at >= 0:
        out.append((at, at + len(text)))
        at = source.find(text, at + len(text))
    if out:
        return out
    here, wanted = tokens(source), [t for t, _, _ in tokens(text)]
    i = 0
    while wanted and i + len(wanted) <= len(here):
        if [t for t, _, _ in here[i:i + len(wanted)]] == wanted:
            out.append((here[i][1], here[i + len(wanted) - 1][2]))
            i += len(wanted)
        else:
            i += 1
    return out


def replaced(source: str, text: str, other: str) -> str:
    """The source with each occurrence of text replaced."""
    for begin, end in reversed(places(source, text)):
        source = source[:begin] + other + source[end:]
    return source
