r"""What every page is made of: templates, a policy of its own, and data that cannot break out.

A page asks no server for anything. Its policy lets the one script and the one style sheet that it holds run, named by
their hashes; the data block cannot be closed from inside, for ``<`` is written ``\u003c`` there.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any


@cache
def template(name: str) -> str:
    """Return a file of ``templates/``; a first line ``{{head.html}}`` is the head pages share."""
    source = (resources.files("torchtriage.report") / "templates" / name).read_text("utf-8")
    begin = "{{head.html}}\n"
    return template("head.html") + source[len(begin) :] if source.startswith(begin) else source


def policy(style: str, script: str = "", connect: str = "") -> str:
    """Return the content policy of a page with this style sheet and, if any, this script.

    ``connect`` : what the script may ask; nothing by default.
    """
    scripts = f" script-src {_digest(script)};" if script else ""
    scripts += f" connect-src {connect};" if connect else ""
    return (
        f"default-src 'none';{scripts} img-src data:; style-src {_digest(style)}; base-uri 'none'; form-action 'none'"
    )


def as_data(value: Any) -> str:
    """Return a value as JSON for a page's data block."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # a lone surrogate, as a file name may hold, has no UTF-8
    return text.encode("utf-8", "backslashreplace").decode().replace("<", "\\u003c")


def filled(name: str, parts: Mapping[str, str]) -> str:
    """Return a template with each ``{{name}}`` replaced."""
    # one pass, so that a part holding "{{script}}" stays what it is
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template(name))


def _digest(source: str) -> str:
    digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
    return f"'sha256-{digest}'"
