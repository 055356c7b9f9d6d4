"""Errors that a reader can act on."""

from __future__ import annotations

import pytest

from infer_diag.errors import DiagError, LogFormatError, ProbeUnavailable, SourceError, UnknownNameError


def test_message_and_hint_make_one_line() -> None:
    error = LogFormatError("burst.log:214 is no\nstatistics line", hint="read it with  format='vllm'")
    assert str(error) == "burst.log:214 is no statistics line · read it with format='vllm'"
    assert str(DiagError("alone")) == "alone"


@pytest.mark.parametrize("kind", [SourceError, LogFormatError, ProbeUnavailable])
def test_every_error_is_caught_as_one_and_rendered_short(kind: type[DiagError]) -> None:
    with pytest.raises(DiagError) as caught:
        raise kind("what happened", hint="what to do")
    assert caught.value._render_traceback_() == [f"{kind.__name__}: what happened · what to do"]


def test_an_unknown_name_brings_close_ones() -> None:
    error = UnknownNameError("sample", "captured/plian", ["captured/plain", "captured/two_starts", "other"])
    assert str(error).startswith("there is no sample named 'captured/plian' · did you mean captured/plain")
    assert "other" not in str(error)


def test_an_unknown_name_without_close_ones_brings_the_first() -> None:
    names = [f"name-{number:02}" for number in range(20)]
    assert str(UnknownNameError("format", "zzz", names)).endswith("known: " + ", ".join(names[:12]))
    assert str(UnknownNameError("recording", "prod", [])).endswith("known: none")


def test_a_long_name_is_cut() -> None:
    assert len(str(UnknownNameError("format", "x" * 10_000, ["vllm"]))) < 200
