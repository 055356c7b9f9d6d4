"""Labels of what is exported: which do, and which stay off metrics."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infer_diag.errors import DiagError
from infer_diag.export.labels import MOST_CHARACTERS, MOST_LABELS, UNBOUNDED, checked


def test_labels_without_end_stay_off_metrics() -> None:
    found = checked({"tenant_id": "acme", "order_id": "A-1", "shop.order_id": "B-2", "region": "eu"})
    assert found.of_spans == {"order_id": "A-1", "region": "eu", "shop.order_id": "B-2", "tenant_id": "acme"}
    assert found.of_metrics == {"region": "eu", "tenant_id": "acme"}
    (note,) = found.notes
    assert "order_id" in note and "tenant_id" not in note


def test_no_labels_are_labels_too() -> None:
    assert checked(None) == checked({}) and not checked(None).notes


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ({"": "x"}, "no name of a label"),
        ({"Tenant": "x"}, "no name of a label"),
        ({"tenant-id": "x"}, "no name of a label"),
        ({"__name__": "x"}, "no name of a label"),
        ({"a.": "x"}, "no name of a label"),
        ({"ténant": "x"}, "no name of a label"),
        ({"a" * 65: "x"}, "no name of a label"),
        ({"service.name": "x"}, "is taken"),
        ({"infer_diag.phase": "x"}, "is taken"),
        ({"le": "x"}, "is taken"),
        ({"job": "x"}, "is taken"),
        ({"start_id": "x"}, "is taken"),
        ({"a.b": "x", "a_b": "y"}, "two labels"),
        ({"a": ""}, "no value"),
        ({"a": " "}, "no value"),
        ({"a": "x" * (MOST_CHARACTERS + 1)}, "too long"),
        ({"a": "x\ny"}, "cannot be shown"),
        ({"a": "x\x1b[31m"}, "cannot be shown"),
        ({"a": "x\u202ey"}, "cannot be shown"),
        ({"a": "hf_" + "b" * 32}, "secret"),
        ({"api_key": "9f8e7d6c5b4a"}, "secret"),
        ({f"a{n}": "x" for n in range(MOST_LABELS + 1)}, "too many"),
    ],
)
def test_other_labels_are_refused_in_one_line(labels: dict[str, str], words: str) -> None:
    with pytest.raises(DiagError, match=re.escape(words)) as raised:
        checked(labels)
    assert "\n" not in str(raised.value)
    assert "hf_" + "b" * 32 not in str(raised.value)


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=20), st.text(max_size=40), max_size=4))
def test_whatever_is_taken_can_be_shown_anywhere(labels: dict[str, str]) -> None:
    try:
        found = checked(labels)
    except DiagError:
        return
    for name, value in found.of_spans.items():
        assert re.fullmatch(r"[a-z][a-z0-9_.]*", name)
        assert value.strip() and len(value) <= MOST_CHARACTERS
        assert not any(ord(character) < 32 for character in value)
    assert not [name for name in found.of_metrics if name in UNBOUNDED]
