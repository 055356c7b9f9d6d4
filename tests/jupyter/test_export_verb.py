"""`%diag export`: what it writes, the Python that does the same, and its refusals."""

from __future__ import annotations

from typing import Any

import infer_diag as diag

SOURCE = "sample:captured/two_starts"


def test_it_writes_what_is_read_back(notebook: Any, tmp_path: Any) -> None:
    notebook.ok(f"%diag load {SOURCE} --as prod")
    text = notebook.ok("%diag export prod --otlp out.jsonl --label tenant_id=acme --label order_id=A-1").text
    assert "samples of" in text and "order_id: on spans alone" in text
    assert len(diag.load("out.jsonl").starts) == 2


def test_the_python_does_the_same(notebook: Any) -> None:
    notebook.ok(f"%diag load {SOURCE} --as prod")
    notebook.ok("%diag export prod --otlp one.jsonl --label tenant_id=acme")
    code = notebook.ok("%diag export prod --otlp two.jsonl --label tenant_id=acme --code").text
    exec(code.replace("%diag", ""), {})
    with open("one.jsonl", "rb") as one, open("two.jsonl", "rb") as two:  # noqa: PTH123
        assert one.read() == two.read()


def test_without_a_target_or_a_label_s_value_it_is_one_line(notebook: Any) -> None:
    notebook.ok(f"%diag load {SOURCE}")
    assert "where to is not said" in str(notebook.run("%diag export").error)
    assert "is no label" in str(notebook.run("%diag export --otlp out.jsonl --label tenant").error)
