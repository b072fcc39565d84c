"""Pages in one file that load nothing. Templates escape by default, and the content security policy allows only our script."""

import base64
import hashlib
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from zerogap.obs import written_whole


def render(template: str, **parts: object) -> str:
    """Render a page of ``templates/`` with the common style and script.

    Args:
        template: name of the file.
        parts: variables of the template; text is escaped.
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
    """Write the page, complete or absent; returns ``path``."""
    # Lone surrogates have no UTF-8; a browser shows the reference as a replacement character.
    with written_whole(path) as partial:
        partial.write_bytes(html.encode("utf-8", errors="xmlcharrefreplace"))
    return path


def _asset(name: str) -> str:
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")
