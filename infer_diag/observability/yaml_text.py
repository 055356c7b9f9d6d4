"""Documents as YAML, in the order in which they were written."""

from __future__ import annotations

from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Writes texts of several lines as blocks, so that an expression reads as one writes it, and repeats no anchors."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: Any, text: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def to_yaml(document: dict[str, Any], *, comment: str = "") -> str:
    """The document as YAML text that ends in a line break, below the lines of the comment."""
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    return head + str(yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000))
