"""What the README says of the formats is what the loaders say of themselves."""

from __future__ import annotations

import re
from pathlib import Path

from infer_diag.loaders import LOADERS

README = Path(__file__).resolve().parent.parent / "README.md"
CHINESE = README.with_name("README.zh.md")
BEGIN, END = "<!-- formats: begin -->\n", "<!-- formats: end -->"


def table() -> str:
    """The formats as the README lists them; `python tests/test_readme.py` writes them there."""
    rows = [
        f"| `{name}` | {loader.about} | {loader.versions} | {', '.join(f'`{frame}`' for frame in loader.frames)} |"
        for name, loader in LOADERS.items()
    ]
    return "\n".join(["| format | what is read | versions tested | frames |", "|---|---|---|---|", *rows, ""])


def test_the_table_of_formats_is_the_loaders_own() -> None:
    text = README.read_text(encoding="utf-8")
    assert text[text.index(BEGIN) + len(BEGIN) : text.index(END)] == table()


def test_both_languages_show_the_same_commands_and_verbs() -> None:
    english, chinese = (path.read_text(encoding="utf-8") for path in (README, CHINESE))
    blocks = [re.findall(r"^```.*?^```", text, re.DOTALL | re.MULTILINE) for text in (english, chinese)]
    assert blocks[0] == blocks[1]
    english_table, chinese_table = (
        [set(re.findall(r"`[^`]+`", line)) for line in text.splitlines() if line.startswith("|") and "`" in line]
        for text in (english[: english.index(BEGIN)], chinese)
    )
    assert english_table == chinese_table


if __name__ == "__main__":
    text = README.read_text(encoding="utf-8")
    README.write_text(text[: text.index(BEGIN) + len(BEGIN)] + table() + text[text.index(END) :], encoding="utf-8")
