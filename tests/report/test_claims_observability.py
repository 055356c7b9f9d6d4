"""Chapter 5 of the article beside ours: what was checked is what is said."""

from __future__ import annotations

from infer_diag.observability.collector import ARTICLE_YAML, collector_config
from infer_diag.observability.collector_faults import faults
from infer_diag.report.claims_observability import ORDERS, observability_claims


def test_the_article_s_configuration_is_counted_out() -> None:
    found = faults(ARTICLE_YAML)
    claims = {claim.subject: claim for claim in observability_claims(found, series_count=36, phases_same=(14, 14))}
    assert (claims["the configuration"].ours or "").startswith("1 error and 3 warnings")
    assert any("service.pipelines" in fault.where for fault in found)
    assert not faults(collector_config())


def test_figures_follow_what_was_measured() -> None:
    claims = {claim.subject: claim for claim in observability_claims([], series_count=40, phases_same=(13, 14))}
    assert claims["labels order_id and tenant_id"].ours == f"40 series; with order_id {40 * ORDERS:,} more a day"
    assert (
        claims["one standard for metrics, logs and traces"].ours == "13 of 14 phases the same after export and import"
    )


def test_what_has_no_source_has_no_figure_of_ours() -> None:
    claims = observability_claims([], series_count=1, phases_same=(1, 1))
    (told,) = [claim for claim in claims if claim.how == "not_identifiable"]
    assert "37 %" in told.article and told.ours is None
    assert all(claim.correction for claim in claims)
