"""Sphinx settings."""

import sys
from pathlib import Path

from mqbroker import __version__

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "mqbroker"
author = "the mqbroker developers"
copyright = "the mqbroker developers; Apache License 2.0"
release = __version__
extensions = ["sphinx.ext.autodoc", "sphinx_copybutton", "sphinx_design", "tests_shown"]
html_theme = "furo"
html_title = f"mqbroker {release}"
html_static_path = ["_static"]
html_css_files = ["narrow.css"]
exclude_patterns = ["_build"]
nitpicky = True
# Without the prompt of a line, and without what it prints.
copybutton_prompt_text = "$ "
