"""vivace.Error and its subclasses, one a kind of failure; docs/errors.md says what each means.

`code` is the kind's stable name ("InvalidShape"). Where Python has a builtin that says the same, the
class is one of those too: InvalidShapeError is a ValueError, NotFoundError a LookupError.
"""
from vivace import _core

_classes = {n: c for n, c in vars(_core).items() if isinstance(c, type) and issubclass(c, _core.Error)}
globals().update(_classes)

__all__ = list(_classes)
