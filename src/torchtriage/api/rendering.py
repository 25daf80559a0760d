"""Results that show themselves: as text, in a notebook cell, as a page, as JSON and Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from torchtriage.report.blocks import Document

__all__ = ["Renderable"]


class Renderable:
    """A result that has a report in every format; ``report.formats`` knows which."""

    _sandbox: ClassVar[str] = ""
    """What the frame in a notebook lets its page do."""

    def _subject(self) -> Any:
        """Return what the formats know: the result, or the document that holds it."""
        return self

    def _document(self) -> Document:
        from torchtriage.report.formats import format_of

        subject = self._subject()
        return format_of(subject).document(subject)

    def __str__(self) -> str:
        """Return the terminal report as plain text."""
        from torchtriage.report import terminal

        return terminal.render(self._document()).plain

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
        from torchtriage.report.formats import page

        return page(self._subject())

    def to_json(self) -> bytes:
        """Return the versioned JSON document (``docs/json.md``)."""
        from torchtriage.report.formats import format_of

        subject = self._subject()
        return format_of(subject).encode(subject)

    def to_markdown(self) -> str:
        """Return Markdown for a pull-request comment."""
        from torchtriage.report import markdown

        return markdown.render(self._document())
