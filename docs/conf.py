"""How Sphinx makes the site: `make docs`. Its source folder is the repository, so links between files hold in both."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sphinx.ext.napoleon.docstring import GoogleDocstring  # noqa: E402

from gdsload.system.version import __version__  # noqa: E402
from tools.docs_site import copy_pictures, with_help, write_llms, write_start  # noqa: E402

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "gdsload"
author = copyright = "The gdsload authors"  # noqa: A001
version = release = __version__
root_doc = "docs/index"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
include_patterns = ["docs/**", "benchmarks/**.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
exclude_patterns = [".*", "dist", "gdsload", "tests", "tools", "examples", "benchmarks/**.py", "benchmarks/results"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
autodoc_mock_imports = ["accelerate", "pytest", "torch_geometric", "transformers"]
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False
default_role = "py:obj"
suppress_warnings = [
    "misc.highlighting_failure",  # dumps of bytes have remarks at the ends of their lines
    "myst.header",  # tables that programs put into a page have their own levels
    "ref.python",  # a name in a docstring may be that of several attributes; it is left without a link
]

# In properties, and in what is returned, the text before a colon is no type.
GoogleDocstring._parse_attribute_docstring = GoogleDocstring._consume_to_end  # noqa: SLF001
GoogleDocstring._consume_returns_section = lambda self, _=False: [("", "", self._consume_to_next_section())]  # noqa: SLF001

html_theme = "furo"
html_title = f"gdsload {__version__}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = True
html_sourcelink_suffix = ""  # a page is also there as its Markdown, for programs that read
html_theme_options = {"top_of_page_buttons": ["view"]}


def setup(app: Sphinx) -> None:
    """The examples of docstrings, and the files that Sphinx does not write."""
    app.connect("source-read", lambda _app, _page, source: source.__setitem__(0, with_help(source[0])))
    app.connect("autodoc-process-docstring", lambda *said: show_code(said[-1]))
    app.connect("build-finished", lambda app, exception: exception or finish(app))


def show_code(lines: list[str]) -> None:
    """Mark the example that follows the first line of a docstring as code."""
    if len(lines) > 2 and lines[2].startswith("    "):
        lines[1:2] = ["", "::", ""]


def finish(app: Sphinx) -> None:
    """Write llms.txt, and the page that leads to the first one."""
    if app.builder.name == "html":
        copy_pictures(ROOT, Path(app.outdir))
        write_llms(ROOT, Path(app.outdir))
        write_start(Path(app.outdir))
