"""Sphinx settings."""

from mqbroker import __version__

project = "mqbroker"
author = "the mqbroker developers"
release = __version__
html_theme = "furo"
html_title = f"mqbroker {release}"
exclude_patterns = ["_build"]
nitpicky = True
