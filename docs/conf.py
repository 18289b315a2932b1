"""How Sphinx builds the documentation site; `nox -s docs` runs it, and any warning fails the build.

Sphinx, because it is maintained, and because it can fail on a reference that leads nowhere. MkDocs 1 has had no release
since 2024; Material for MkDocs and mkdocstrings are in maintenance mode.
"""

from importlib.metadata import version as installed_version
from typing import Any

from sphinx.application import Sphinx

project = "rollout-control"
author = "the authors of rollout-control"
project_copyright = f"{author}; Apache License 2.0"
release = version = installed_version("rollout-control")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
source_suffix = {".md": "markdown"}

# A link to a section of another page is checked against the anchors that MyST makes for its headings.
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]

nitpicky = True
# What other projects document: their inventories would have to be downloaded to link to them.
nitpick_ignore_regex = [
    ("py:.*", r"(asyncio|collections|contextlib|datetime|enum|logging|os|pathlib|ssl|types|typing|uuid)\..*"),
    ("py:.*", r"(asyncpg|fastapi|httpx|litestar|msgspec|nemo_gym|pytest|starlette)\..*"),
]

default_role = "code"  # docstrings mark code by single backquotes, as Markdown does
autodoc_member_order = "groupwise"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_preserve_defaults = True
autodoc_mock_imports = ["nemo_gym"]  # it is not needed to read the adapter's docstrings
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True  # a documented attribute is a line of its class, not a second description of the field

html_theme = "furo"
html_title = f"rollout-control {release}"
html_show_sourcelink = False
html_extra_path = ["_build/extra"]  # copied as it is; `nox -s docs` puts the rendered spec there


def setup(app: Sphinx) -> None:
    """Lets Sphinx read docstrings as they are written; before napoleon, which has the priority 500."""
    app.connect("autodoc-process-docstring", mark_code_blocks, priority=400)


def mark_code_blocks(*event: Any) -> None:
    """Marks each indented block that follows a blank line as code, which is what it means in Markdown.

    Args:
        event: Sphinx's arguments; the last one is the list of the docstring's lines, which is changed.
    """
    lines: list[str] = event[-1]
    marked: list[str] = []
    in_code = False
    for line in lines:
        after_paragraph = len(marked) > 1 and not marked[-1] and not marked[-2][:1].isspace()
        if not in_code and after_paragraph and line.startswith("    "):
            marked += ["::", ""]
            in_code = True
        elif line and not line[0].isspace():
            in_code = False
        marked.append(line)
    lines[:] = marked
