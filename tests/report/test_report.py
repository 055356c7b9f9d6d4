from __future__ import annotations

import base64
import dataclasses
import gzip
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import made
import pytest
from plotly.offline import get_plotlyjs

import infer_diag as diag
from infer_diag.diagnose.finding import Finding
from infer_diag.errors import SourceError
from infer_diag.report import render, report

CORPUS = Path(__file__).parents[3] / "shared" / "corpus" / "server_logs" / "vllm_0.15.0_gpt-oss-120b_tp4_server.log"


class Page(HTMLParser):
    """Tags and scripts as a browser would find them, and the text outside of scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
        if tag in ("script", "style"):
            self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif not self._inside:
            self.text += data


def without_plotly(html: str) -> str:
    return html.replace(get_plotlyjs(), "/* plotly.js */")


def without_scripts(html: str) -> str:
    """What is left to compare: plotly's own call is a version's business, and the charts have tests of their own."""
    bare = re.sub(r"<script>.*?</script>", "<script></script>", html, flags=re.DOTALL)
    bare = re.sub(r"script-src [^;]*;", "script-src …;", bare)
    bare = re.sub(
        r'<div style="height[^>]*>\s*<div id="(chart-[^"]*)".*?</script>\s*</div>', r"(\1)", bare, flags=re.DOTALL
    )
    bare = bare.replace(f"infer_diag {diag.__version__}", "infer_diag VERSION")
    return re.sub(r"<style>.*?</style>", "<style></style>", bare, flags=re.DOTALL)


def test_the_page_is_as_it_was(snapshot: Any) -> None:
    assert without_scripts(render(made.diagnosis())) == snapshot


def test_an_empty_diagnosis_is_a_page_too(snapshot: Any) -> None:
    empty = diag.diagnose(diag.Recording())
    html = render(empty)
    assert not Page(html).scripts
    assert without_scripts(html) == snapshot


def test_the_same_diagnosis_gives_the_same_bytes(tmp_path: Path) -> None:
    paths = [report(made.diagnosis(), tmp_path / name) for name in ("a.html", "b.html")]
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_plotly_stands_in_the_file_once_and_nothing_is_fetched() -> None:
    html = render(made.diagnosis())
    assert html.count(get_plotlyjs()) == 1
    page = Page(html)
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "img", "object", "embed", "base", "form")
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)
    assert style is not None and "url(" not in style[1] and "@import" not in style[1]


def test_the_policy_names_every_script_by_hash_and_no_other() -> None:
    page = Page(render(made.diagnosis()))
    policy = next(values["content"] for tag, values in page.tags if tag == "meta" and "http-equiv" in values)
    assert policy is not None and "default-src 'none'" in policy and "unsafe-eval" not in policy
    allowed = set(re.findall(r"'sha256-([^']+)'", policy))
    digests = {base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in page.scripts}
    assert allowed == digests
    assert "script-src 'unsafe-inline'" not in policy


def test_ids_are_unique_and_the_menu_leads_to_them() -> None:
    page = Page(render(made.diagnosis()))
    ids = [values["id"] for _, values in page.tags if "id" in values]
    assert len(ids) == len(set(ids))
    targets = {(values["href"] or "")[1:] for tag, values in page.tags if tag == "a"}
    assert targets <= set(ids)


def test_the_answer_comes_first_with_the_gravest_findings() -> None:
    text = Page(render(made.diagnosis())).text
    answer = text[: text.index("Findings\nCold start")]
    assert made.FINDINGS[0].sentence in answer and made.FINDINGS[1].sentence in answer
    assert made.FINDINGS[3].sentence not in answer


def test_unknown_is_said_and_never_zero() -> None:
    text = Page(render(made.diagnosis())).text
    row = text[text.index("start-3", text.index("3 starts")) :][:120]
    assert "unknown" in row and "0 s" not in row


def test_many_starts_keep_the_page_small() -> None:
    document = made.document()
    one = document["starts"][0]
    document["starts"] = [{**one, "start_id": f"start-{number}", "span_s": float(number)} for number in range(500)]
    html = without_plotly(render(made.diagnosis(document=document)))
    assert "500 starts, the first 200 listed" in Page(html).text
    assert html.count('aria-label="Phases of') == 4
    assert "Phases of start-499" in html


ATTACKS = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</script><script>alert(1)</script>",
    "</style><svg onload=alert(1)>",
    "{{7*7}}{% for a in b %}",
    "`</code><script>alert(1)</script>`",
    "<!--", "]]>", "javascript:alert(1)",
    "\x00\x1b[31m<b>\u202e",
]  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_text_of_a_log_is_never_markup(attack: str, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(f"first\n{attack} line two\nthird\n", encoding="utf-8")
    source = dataclasses.replace(
        made.source(str(log)), size_bytes=log.stat().st_size, engine_version=attack, notes=(attack,)
    )
    finding = Finding("cold_start.process", "high", attack, "measured", (f"{log}:2", f"{attack}:3"), attack, 1.0)
    document = made.document()
    document["starts"][0]["start_id"] = attack
    document["starts"][0]["gaps"][0]["after"] = attack
    document["starts"][0]["phases"][1]["rank"] = attack
    told = made.diagnosis(recording={"sources": (source, made.source(attack))}, findings=(finding,), document=document)
    plain = render(made.diagnosis(recording={"sources": (source, made.source("x"))}, findings=(finding,)))
    page, calm = Page(render(told)), Page(plain)
    assert sorted({tag for tag, _ in page.tags}) == sorted({tag for tag, _ in calm.tags})
    assert not [name for _, values in page.tags for name in values if name.startswith("on")]
    assert len(page.scripts) <= len(calm.scripts)
    assert ("{{7*7}}" in page.text) == ("{{" in attack)


def test_secrets_never_reach_the_page(tmp_path: Path) -> None:
    secret = "S3cretS3cretS3cretS3cret"
    log = tmp_path / "server.log"
    key = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"
    log.write_text(f"{key}\nlastPartOfKey==\nAuthorization: Bearer {secret}\nok\npassword='{secret}'\n")
    source = dataclasses.replace(made.source(str(log)), size_bytes=log.stat().st_size, notes=(f"api_key={secret}",))
    finding = Finding(
        "cold_start.process", "high", f"token={secret} was slow", "measured", (f"{log}:3",), f"--api-key {secret}", 1.0
    )
    rejected = made.diagnosis().recording.rejected.with_columns(text=made.pl.lit(f"hf_{secret}"))
    html = render(made.diagnosis(recording={"sources": (source,), "rejected": rejected}, findings=(finding,)))
    assert secret not in html
    assert "lastPartOfKey" not in html and key not in html
    assert "Authorization: Bearer [redacted]" in html


def test_evidence_is_shown_with_two_neighbours_and_cut(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("\n".join([f"line {number}" for number in range(1, 8)] + ["x y" * 300]) + "\n")
    source = dataclasses.replace(made.source(str(log)), size_bytes=log.stat().st_size)
    finding = Finding("cold_start.process", "low", "Slow.", "measured", (f"{log}:4", f"{log}:5", f"{log}:8"))
    html = render(made.diagnosis(recording={"sources": (source,)}, findings=(finding,)))
    block = html[html.index('<pre class="lines">') :]
    block = block[: block.index("</details>")]
    assert [int(number) for number in re.findall(r"<i>(\d+)</i>", block)] == [2, 3, 4, 5, 6, 7, 8]
    assert [int(number) for number in re.findall(r'class="cited"><i>(\d+)</i>', block)] == [4, 5, 8]
    assert "x y" * 99 + "x …" in block and "x y" * 100 not in block


def test_evidence_is_found_in_a_compressed_log(tmp_path: Path) -> None:
    log = tmp_path / "server.log.gz"
    log.write_bytes(gzip.compress("\n".join(f"line {number}" for number in range(1, 5000)).encode()))
    source = dataclasses.replace(made.source(str(log)), size_bytes=log.stat().st_size)
    finding = Finding("cold_start.process", "low", "Slow.", "measured", (f"{log}:4998",))
    html = render(made.diagnosis(recording={"sources": (source,)}, findings=(finding,)))
    assert '<span class="cited"><i>4998</i>line 4998</span><span><i>4999</i>line 4999</span></pre>' in html


def test_a_file_that_changed_or_went_leaves_the_place_alone(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("secretless\n")
    for path in (log, tmp_path / "gone.log"):
        source = dataclasses.replace(made.source(str(path)), size_bytes=999)
        finding = Finding("cold_start.process", "low", "Slow.", "measured", (f"{path}:1",))
        html = render(made.diagnosis(recording={"sources": (source,)}, findings=(finding,)))
        assert f"{path}:1" in html and '<pre class="lines">' not in html


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be written"):
        report(made.diagnosis(), tmp_path / "no" / "r.html")


@pytest.mark.skipif(not CORPUS.exists(), reason="the shared corpus is not here")
def test_a_real_log_gives_a_whole_report() -> None:
    html = render(diag.diagnose(diag.load(CORPUS)))
    page = Page(html)
    assert {"chart-start-1", "chart-serving", "chart-steps"} <= {values.get("id") for _, values in page.tags}
    assert "Graph capturing finished in 21 secs" in page.text
    assert page.text.count("mixed") >= 1 and "prefill_starves_decode" in page.text
    assert html == render(diag.diagnose(diag.load(CORPUS)))
