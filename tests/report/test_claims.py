"""The table that sets a published figure beside ours."""

from __future__ import annotations

import pytest

from infer_diag.report.claims import Claim, Claims

READ = Claim("context creation", "417 ms", "85 ms", "recorded", "the phases overlap", where="one H200")
OPEN = Claim("L2 hit rate", "86 %", None, "not_identifiable", "needs hardware counters")


def test_a_line_says_how_each_figure_was_obtained() -> None:
    assert Claims([READ, OPEN]).lines == [
        "context creation: the article says 417 ms; ours 85 ms (recorded, one H200)",
        "L2 hit rate: the article says 86 %; ours — (not identifiable)",
    ]


def test_the_table_shows_the_correction_and_escapes_every_cell() -> None:
    html = Claims([READ, Claim("<b>x</b>", "<script>1</script>", "&", "modelled")])._repr_mimebundle_()["text/html"]
    assert "the phases overlap" in html
    assert "<script>" not in html
    assert "&lt;b&gt;x&lt;/b&gt;" in html


@pytest.mark.parametrize(("ours", "how"), [("1 s", "guessed"), (None, "measured"), ("1 s", "not_identifiable")])
def test_a_figure_without_an_origin_is_refused(ours: str | None, how: str) -> None:
    with pytest.raises(ValueError, match="figure"):
        Claim("load", "1 s", ours, how)
