"""Results that show themselves: as text, in a notebook cell, as a page, as JSON and Markdown."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["Shown"]


class Shown:
    """A result whose reports are made by a room of ``torchtriage.report``."""

    _room: str
    _sandbox: str

    def __init_subclass__(cls, *, room: str = "", scripts: bool = False, **options: Any) -> None:
        """Name the room, empty for ``report`` itself, and say whether its page holds a script."""
        super().__init_subclass__(**options)
        cls._room = ".".join(filter(None, ("torchtriage.report", room)))
        cls._sandbox = "allow-scripts" if scripts else ""

    def __str__(self) -> str:
        """Return the terminal report as plain text."""
        text: str = self._made_by("terminal").plain
        return text

    def _repr_html_(self) -> str:
        """Return the page for a notebook cell, in a frame of its own."""
        import html  # nobody else needs it

        page = html.escape(self.to_html(), quote=True)
        return (
            f'<iframe srcdoc="{page}" sandbox="{self._sandbox}" title="torchtriage report"'
            ' style="width:100%;height:720px;border:0"></iframe>'
        )

    def to_html(self) -> str:
        """Return one self-contained HTML page."""
        page: str = self._made_by("html_page")
        return page

    def to_json(self) -> bytes:
        """Return the versioned JSON document (``docs/json.md``)."""
        document: bytes = self._made_by("json_report", "encode")
        return document

    def to_markdown(self) -> str:
        """Return Markdown for a pull-request comment."""
        text: str = self._made_by("markdown")
        return text

    def _made_by(self, module: str, function: str = "render") -> Any:
        made_from, options = self._made_from()
        return getattr(import_module(f"{self._room}.{module}"), function)(*made_from, **options)

    def _made_from(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return what the room's functions take."""
        return (self,), {}
