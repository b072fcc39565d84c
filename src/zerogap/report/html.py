"""Pages in one file that load nothing: every template escapes by default, and the content security policy lets no script run but ours."""

import base64
import hashlib
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined


def render(template: str, **parts: object) -> str:
    """A page of ``templates/``, with the style and the script that all pages have.

    Args:
        template: name of the file.
        parts: what the template uses; text in it is escaped.
    """
    templates = Environment(
        loader=PackageLoader("zerogap.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = _asset("hover.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return templates.get_template(template).render(
        style=_asset("style.css"), script=script, script_digest=digest, **parts
    )


def write_page(path: Path, html: str) -> Path:
    """Write the page, complete or not at all; returns ``path``."""
    # Lone surrogates in a recipe's text have no UTF-8; a browser shows the reference as a replacement character.
    partial = path.with_suffix(".partial")
    partial.write_bytes(html.encode("utf-8", errors="xmlcharrefreplace"))
    return partial.replace(path)


def _asset(name: str) -> str:
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")
