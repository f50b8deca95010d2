"""Whose characters are whose in what a chat template writes. template_worker.py loads this file; it imports no part of vivace.

A template is rendered twice: as it is, and with every character of the caller's strings replaced by a private one of planes
15 and 16, so that it is known after whatever the template does: joining, cutting, looping. What a template asks of strings
(is one in another, where to split it, what is white space) is answered over what they say, here. Where the second text,
read back, is not the first, the template did something that nothing here follows, and the conversation is refused.
"""
import inspect
import json
import operator
import re

from jinja2 import Undefined, filters, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer
from markupsafe import Markup

FIRST, LAST = 0xF0000, 0x10FFFD
MARKED = re.compile(f"[{chr(FIRST)}-{chr(LAST)}]+")
CACHED = 64  # characters: longer strings are read back once


class TooMany(Exception):
    """More different characters than there are private ones."""


class Key(str):
    """A key of the caller's: written as marked characters, found by what it says."""

    def __new__(cls, marked: str, says: str):
        key = str.__new__(cls, marked)
        key._says = says  # an underscore: templates do not reach it
        return key

    def __hash__(self):
        return hash(self._says)

    def __eq__(self, other):
        return self._says == (other._says if isinstance(other, Key) else other)

    def __ne__(self, other):
        return not self == other

    def __lt__(self, other):
        return self._says < (other._says if isinstance(other, Key) else other)


class Marks:
    """The private characters of one rendering."""

    def __init__(self):
        self.of, self.says, self._read = {}, {}, {}

    def mark(self, text: str) -> str:
        for c in set(text):
            if ord(c) not in self.of:
                private = FIRST + len(self.of)
                if private > LAST:
                    raise TooMany
                self.of[ord(c)], self.says[private] = private, ord(c)
        return text.translate(self.of)

    def tree(self, value):
        """Plain data with its strings marked."""
        if isinstance(value, str):
            return self.mark(value)
        if isinstance(value, list):
            return [self.tree(v) for v in value]
        if isinstance(value, dict):
            return {Key(self.mark(k), k): self.tree(v) for k, v in value.items()}
        return value

    def read(self, value):
        """What a value says."""
        if isinstance(value, Key):
            return value._says
        if isinstance(value, str):
            if value.isascii():
                return value
            if len(value) < CACHED:
                return value.translate(self.says)
            if value not in self._read:
                self._read[value] = value.translate(self.says)
            return self._read[value]
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.read, value)) if type(value) in (list, tuple) else value
        if isinstance(value, dict):
            return {self.read(k): self.read(v) for k, v in value.items()}
        return value

    def each(self, text: str, change) -> str:
        """`text` with each character changed, and still whose it was."""
        return text.translate({ord(c): self.mark(change(chr(self.says[ord(c)]))) if ord(c) in self.says else change(c) for c in set(text)})

    def like(self, text: str, changed: str) -> str:
        """`changed`, whose every character belongs to whom that of `text` at its place does."""
        return "".join(self.mark(n) if ord(c) in self.says else n for c, n in zip(text, changed, strict=True))

    # -- methods of strings: the answer is of what they say, and parts are parts of the marked string

    def _split(self, text, name, args, named):
        says, at, parts = self.read(text), 0, []
        by = args[0] if args else named.get("sep") if "split" == name[-5:] else None
        for part in getattr(says, name)(*args, **named):
            if not isinstance(by, str):  # white space, of which a part has none at its beginning
                at = says.index(part, at)
            parts.append(str.__getitem__(text, slice(at, at + len(part))))
            at += len(part) + (len(by) if isinstance(by, str) else 0)
        return parts

    def _partition(self, text, name, args, named):
        parts, at = getattr(self.read(text), name)(*args, **named), 0
        return tuple(str.__getitem__(text, slice(at, at := at + len(part))) for part in parts)

    def _strip(self, text, name, args, named):
        says = self.read(text)
        kept = getattr(says, name)(*args, **named)
        at = 0 if name in ("rstrip", "removesuffix") else len(says) - len(kept) if name in ("lstrip", "removeprefix") else len(says) - len(says.lstrip(*args))
        return str.__getitem__(text, slice(at, at + len(kept)))

    def _replace(self, text, name, args, named):
        old, new, count = args[0], args[1], args[2] if len(args) > 2 else -1
        return text.replace(old, new, count) if not old else new.join(self._split(text, "split", (self.read(old), count), {}))

    def _case(self, text, name, args, named):
        says = self.read(text)
        changed = getattr(says, name)()
        if len(changed) != len(says):  # some character became two
            return self.each(text, lambda c: getattr(c, name)())
        return self.like(text, changed)

    def _ask(self, text, name, args, named):
        return getattr(self.read(text), name)(*args, **named)

    METHODS = {n: how for names, how in {
        "split rsplit splitlines": _split, "partition rpartition": _partition, "strip lstrip rstrip removeprefix removesuffix": _strip, "replace": _replace,
        "upper lower title capitalize swapcase casefold": _case,
        "startswith endswith find rfind index rindex count isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper": _ask,
    }.items() for n in names.split()}

    def method(self, text: str, name: str, args, named):
        """What text.name(...) gives; None where it needs no help."""
        how = self.METHODS.get(name)
        if how is None:
            return None
        if how is not Marks._replace:
            args, named = tuple(map(self.read, args)), {k: self.read(v) for k, v in named.items()}
        return how(self, text, name, args, named)

    # -- texts of values

    def json(self, value, ensure_ascii=False, **how) -> str:
        text = json.dumps(value, ensure_ascii=False, **how)
        escape = lambda c: json.dumps(c, ensure_ascii=ensure_ascii)[1:-1]  # noqa: E731
        return text.translate({ord(c): self.mark(escape(chr(self.says[ord(c)]))) if ord(c) in self.says else escape(c) for c in set(text) if not c.isascii()})

    def repr(self, value) -> str:
        """As Python writes lists and dicts."""
        if isinstance(value, dict):
            return "{" + ", ".join(f"{self.repr(k)}: {self.repr(v)}" for k, v in value.items()) + "}"
        if isinstance(value, (list, tuple)):
            inner = ", ".join(map(self.repr, value))
            return f"[{inner}]" if isinstance(value, list) else f"({inner},)" if len(value) == 1 else f"({inner})"
        if isinstance(value, str):
            quote = repr(self.read(value))[0]
            return quote + self.each(str(value), lambda c: "\\" + c if c == quote else c if c in "'\"" else repr(c)[1:-1]) + quote
        return repr(value)

    def text(self, value):
        return self.repr(value) if isinstance(value, (list, tuple, dict)) else value


def _in(marks, left, right):
    if isinstance(right, dict):
        return marks.read(left) in right
    return marks.read(left) in (marks.read(right) if isinstance(right, (str, list, tuple)) else right)


COMPARE = {"eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "lteq": operator.le, "gt": operator.gt, "gteq": operator.ge}
TESTS = {"eq": "eq equalto ==", "ne": "ne !=", "lt": "lt lessthan <", "lteq": "le <=", "gt": "gt greaterthan >", "gteq": "ge >=", "in": "in"}


class _Rewrite(NodeTransformer):
    """Comparisons become a filter: they have no hook. Joined values are written as the environment writes them."""

    def visit_Compare(self, node):
        self.generic_visit(node)
        pairs = [nodes.List([nodes.Const(o.op), o.expr]) for o in node.ops]
        return self._filter(node, node.expr, "compare", pairs)

    def visit_Concat(self, node):
        self.generic_visit(node)
        node.nodes = [self._filter(node, n, "string", []) for n in node.nodes]
        return node

    @staticmethod
    def _filter(at, node, name, args):
        made = nodes.Filter(node, name, args, [], None, None)
        made.set_lineno(at.lineno)
        made.set_environment(at.environment)
        return made


class MarkedEnvironment(ImmutableSandboxedEnvironment):
    """Renders with marked values; `marks` is of the rendering that runs."""

    def __init__(self, **options):
        self.marks = Marks()
        super().__init__(finalize=lambda v: self.marks.text(v), **options)
        for op, names in TESTS.items():
            self.tests.update(dict.fromkeys(names.split(), lambda left, right, op=op: self.compare(left, [op, right])))
        say = lambda v: v if isinstance(v, str) else str(self.marks.text(v))  # noqa: E731
        method = lambda name: lambda value, *args, **named: self.marks.method(say(value), name, args, named)  # noqa: E731
        self.tests |= {"lower": method("islower"), "upper": method("isupper")}
        self.filters |= {n: method(n) for n in ("upper", "lower", "capitalize")}
        self.filters |= {
            "compare": self.compare, "trim": method("strip"), "title": self._title, "string": say,
            "replace": lambda value, old, new, count=None: self.marks.method(say(value), "replace", (str(old), str(new), -1 if count is None else count), {}),
            "indent": self._indent, "wordcount": lambda v: filters.do_wordcount(self.marks.read(v)),
            "int": lambda v, *a, **k: filters.do_int(self.marks.read(v), *a, **k), "float": lambda v, *a, **k: filters.do_float(self.marks.read(v), *a, **k),
        }
        self.filters |= dict.fromkeys(("e", "escape", "forceescape"), lambda v: v if hasattr(v, "__html__") else Markup(self.marks.each(str(v), lambda c: str(filters.escape(c)))))
        plain = filters.ignore_case  # what sort, unique, groupby, dictsort, min and max compare
        filters.ignore_case = lambda value: plain(self.marks.read(value))

    def compare(self, left, *pairs) -> bool:
        for op, right in pairs:
            if op in ("in", "notin"):
                if _in(self.marks, left, right) != (op == "in"):
                    return False
            elif not COMPARE[op](self.marks.read(left), self.marks.read(right)):
                return False
            left = right
        return True

    def _title(self, value):
        value, parts, at = str(value), [], 0
        for word in filters._word_beginning_split_re.split(self.marks.read(value)):
            part, at = value[at:at + len(word)], at + len(word)
            parts += [self.marks.method(part[:1], "upper", (), {}), self.marks.method(part[1:], "lower", (), {})]
        return "".join(parts)

    def _indent(self, value, width=4, first=False, blank=False):
        indent, lines = width if isinstance(width, str) else " " * width, self.marks.method(value + "\n", "splitlines", (), {})
        text = ("\n" + indent).join(lines) if blank else lines[0] + "".join("\n" + (indent + line if line else line) for line in lines[1:])
        return indent + text if first else text

    def _generate(self, source, *args, **named):
        return super()._generate(_Rewrite().visit(source), *args, **named)

    def getitem(self, obj, argument):
        return super().getitem(obj, self.marks.read(argument) if isinstance(argument, str) else argument)

    def call(__self, __context, __obj, *args, **kwargs):  # noqa: B902  named as the sandbox names them
        owner = getattr(__obj, "__self__", None)
        if inspect.isbuiltin(__obj) and isinstance(owner, str):
            named = {k: v for k, v in kwargs.items() if k not in ("_loop_vars", "_block_vars")}  # jinja2's own
            answer = __self.marks.method(owner, __obj.__name__, args, named)
            if answer is not None:
                return answer
        elif inspect.isbuiltin(__obj) and isinstance(owner, dict):
            args = tuple(__self.marks.read(a) if i == 0 and isinstance(a, str) else a for i, a in enumerate(args))
        return super().call(__context, __obj, *args, **kwargs)
