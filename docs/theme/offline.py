"""A MkDocs hook that refuses a page which loads something from another host: the site is read offline, too."""

from __future__ import annotations

import re
from typing import Any

from mkdocs.exceptions import PluginError

# A tag that makes a browser load something; the links of a text (`<a href>`) may lead anywhere.
_LOADED = re.compile(
    r"<(?:script|link|img|iframe|source|object)\b[^>]*?\b(?:src|href|data)=[\"']?((?:https?:)?//[^\"' >]+)"
)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Return the page as it is. Raises PluginError for a script, style, image or frame of another host."""
    found = _LOADED.search(output)
    if found:
        raise PluginError(f"{page.file.src_uri}: loads {found[1]}; a page may load its own files only")
    return output
