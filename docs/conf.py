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
html_search_scorer = str(Path(__file__).parent / "_static" / "scorer.js")
html_show_sourcelink = False
html_theme_options = {"top_of_page_buttons": []}
exclude_patterns = ["_build"]
nitpicky = True
# Without the prompt of a line, and without what it prints.
copybutton_prompt_text = "$ "
# Names in single backquotes in docstrings are code.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_default_options = {"exclude-members": "__init__, __new__"}
python_use_unqualified_type_names = True
# Names of other packages, and of our own that are not public, have no page here.
nitpick_ignore_regex = [("py:.*", r"(?!mqbroker\.client\.(aio|blocking|deferred)\b).*")]
