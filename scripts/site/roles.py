"""Cross-references of docstrings, written as Sphinx roles, become links on the site.

Editors and `help` show :func:`name` well, while mkdocstrings reads docstrings as Markdown and would print the
role as it is. A role whose target is on the API pages becomes a link, any other its name in code letters.
"""

from __future__ import annotations

import re

import griffe

ROLE = re.compile(r":(?:func|class|meth|mod|attr|data|exc|obj):`([^`]+)`")


class Roles(griffe.Extension):
    """Rewrites each docstring once its package is loaded, so that names resolve as their module sees them."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: object) -> None:
        """Rewrite the docstrings of a package."""
        rewrite_members(pkg)


def rewrite_members(scope: griffe.Module | griffe.Class) -> None:
    """Rewrite the docstrings of an object and of its members."""
    rewrite(scope)
    for member in scope.members.values():
        if isinstance(member, griffe.Module | griffe.Class):
            rewrite_members(member)
        elif isinstance(member, griffe.Object):
            rewrite(member)


def rewrite(owner: griffe.Object) -> None:
    """Rewrite one docstring."""
    if owner.docstring is not None:
        owner.docstring.value = ROLE.sub(lambda role: link(owner, role[1]), owner.docstring.value)


def link(owner: griffe.Object, target: str) -> str:
    """The link for one role's text; ``~`` shows the last part of the name alone, as in Sphinx."""
    name = target.lstrip("~.")
    shown = name.rpartition(".")[2] if target.startswith("~") else name
    return f'<autoref identifier="{resolved(owner, name)}" optional><code>{shown}</code></autoref>'


def resolved(owner: griffe.Object, name: str) -> str:
    """The full path of a name where it is written: in its own class, its module or the package."""
    scope: griffe.Object | None = owner
    while scope is not None:
        if name.partition(".")[0] in scope.members:
            return f"{scope.path}.{name}"
        scope = scope.parent
    return name
