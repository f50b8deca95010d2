"""What is committed works on any machine: no build machine's paths, no package hosts."""

import re
from pathlib import Path

from . import source

PURPOSE = "no absolute path of a build machine, no address of a package host"
PATH = re.compile(r"(?<![\w.$}])/(?:root|home|work|Users|mnt|media)/[\w.-]+")
HOST = re.compile(
    r"\b(?:pypi\.org|pythonhosted\.org|(?:deb|security|snapshot|ftp)\.debian\.org|archive\.ubuntu\.com"
    r"|raw\.githubusercontent\.com|codeload\.github\.com|huggingface\.co|hf\.co|download\.pytorch\.org"
    r"|developer\.download\.nvidia\.com|pypi\.nvidia\.com|registry\.npmjs\.org|crates\.io"
    r"|conda\.anaconda\.org|storage\.googleapis\.com)\b"
)


def run(root: Path) -> list[str]:
    out = []
    for name in source.files(root):
        for n, line in enumerate(source.text(root, name).splitlines(), 1):
            if m := PATH.search(line):
                out.append(f"{name}:{n}: absolute path {m.group(0)}")
            if m := HOST.search(line):
                out.append(f"{name}:{n}: package host {m.group(0)}; clients are set up by the user")
    return out
