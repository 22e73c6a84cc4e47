"""Sphinx's settings: `make site` writes these pages to build/site, to be opened from disk without a network."""

import sys
from pathlib import Path

import ziamath

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from site_extension import setup as setup  # noqa: E402

project = "Pellucid"
author = "The Pellucid authors"
copyright = "The Pellucid authors"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["build"]
default_role = "code"

# Markdown: $...$ and $$...$$ are mathematics; headings can be linked to, as #their-words
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 4

# signatures as they are written, with short names of types
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False

# a block that names no language is what a program prints
highlight_language = "none"

html_theme = "furo"
html_title = "Pellucid"
# a font for mathematics (STIX Two Math, under the Open Font License), so that formulas look the same everywhere
html_static_path = ["site.css", str(Path(ziamath.__file__).parent / "fonts" / "STIXTwoMath-Regular.ttf")]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sourcelink = False
pygments_style = "a11y-light"
pygments_dark_style = "a11y-dark"
