"""Results that show themselves: as text, in a notebook cell, as a page, as JSON and Markdown."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from typing_extensions import Self


class Renderable:
    """A result that has a report in every format; ``report.formats`` knows which."""

    _sandbox: ClassVar[str] = ""
    """What the frame in a notebook lets its page do."""

    @classmethod
    def of(cls, result: Any) -> Self:
        """Return a result of the class beside this one as one that shows itself."""
        return cls(**{field.name: getattr(result, field.name) for field in fields(result)})

    def _subject(self) -> Any:
        """Return what the formats know: the result, or the document that holds it."""
        return self

    def __str__(self) -> str:
        """Return the terminal report as plain text."""
        from torchtriage.report import formats, terminal

        subject = self._subject()
        return terminal.render(formats.format_of(subject).document(subject)).plain

    def _repr_html_(self) -> str:
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
        from torchtriage.report import formats, markdown

        subject = self._subject()
        return markdown.render(formats.format_of(subject).document(subject))
