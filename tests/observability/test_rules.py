"""Rules for Prometheus: promtool takes them, and each alert fires on series that it is about and on no others."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from infer_diag.errors import UnknownNameError
from infer_diag.loaders.exposition.families import MEANINGS
from infer_diag.observability.rules import ENGINES, rule_table, rules, rules_yaml

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)")
VLLM = 'instance="gpu-1:8000",model_name="m",engine="0"'
SGLANG = 'instance="gpu-2:30000",model_name="m",tp_rank="{}"'


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    assert PROMTOOL is not None
    return subprocess.run([PROMTOOL, *map(str, arguments)], capture_output=True, text=True, check=False)


@needs_promtool
@pytest.mark.parametrize("engines", [ENGINES, ("vllm",), ("dcgm-exporter",), ()], ids=len)
def test_promtool_takes_the_rules(engines: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(rules_yaml(engines))
    done = promtool("check", "rules", path)
    assert done.returncode == 0 and "SUCCESS" in done.stdout, done.stderr


def vllm(minutes: int, **metrics: str) -> list[dict[str, str]]:
    """Series in promtool's notation: `kv="0.97x30"` stays so, `preempted="0+3x30"` counts up by 3 a minute."""
    names = {
        "kv": "kv_cache_usage_perc",
        "old_kv": "gpu_cache_usage_perc",
        "waiting": "num_requests_waiting",
        "running": "num_requests_running",
        "preempted": "num_preemptions_total",
        "prompt": "prompt_tokens_total",
        "output": "generation_tokens_total",
        "queue_sum": "request_queue_time_seconds_sum",
        "queue_count": "request_queue_time_seconds_count",
        "prefill_sum": "request_prefill_time_seconds_sum",
        "prefill_count": "request_prefill_time_seconds_count",
        "e2e_sum": "e2e_request_latency_seconds_sum",
        "e2e_count": "e2e_request_latency_seconds_count",
    }
    return [
        {"series": f"vllm:{names[key]}{{{VLLM}}}", "values": f"{values}x{minutes}"} for key, values in metrics.items()
    ]


BUSY = {"running": "8+0", "waiting": "0+0", "kv": "0.5+0", "prompt": "0+600", "output": "0+6000", "preempted": "0+0"}
MINUTES = 24
CASES: list[tuple[str, dict[str, str], bool]] = [
    ("KvPoolFull", {"kv": "0.97+0", "waiting": "4+0"}, True),
    ("KvPoolFull", {"kv": "0.97+0"}, False),
    ("KvPoolFull", {"kv": "0.90+0", "waiting": "4+0"}, False),
    ("RequestsPreempted", {"preempted": "0+3"}, True),
    ("RequestsPreempted", {}, False),
    ("SequenceLimitBinds", {"waiting": "5+0", "kv": "0.4+0"}, True),
    ("SequenceLimitBinds", {"waiting": "5+0", "kv": "0.89+0"}, False),
    ("SequenceLimitBinds", {"kv": "0.4+0"}, False),
    ("SchedulerStalled", {"running": "0+0", "waiting": "5+0", "kv": "0+0"}, True),
    ("SchedulerStalled", {"running": "1+0", "waiting": "5+0", "kv": "0+0"}, False),
    ("SchedulerStalled", {"running": "0+0", "waiting": "0+0", "kv": "0+0"}, False),
    ("EngineStandsStill", {"prompt": "7+0", "output": "9+0"}, True),
    ("EngineStandsStill", {"output": "9+0", "prompt": "7+0", "kv": "0.1+0.001"}, False),
    ("EngineStandsStill", {"prompt": "7+0"}, False),
    ("EngineStandsStill", {"running": "0+0", "prompt": "7+0", "output": "9+0"}, False),
    ("RequestsQueue", {"waiting": "3+0", "kv": "0.89+0", "running": "8+0"}, True),
    ("RequestsQueue", {"waiting": "3+0", "kv": "0.97+0"}, False),
    ("RequestsQueue", {"waiting": "3+0", "kv": "0.4+0"}, False),
    ("RequestsQueue", {"waiting": "0+0"}, False),
    ("QueueTimeDominates", {"queue_sum": "0+24", "queue_count": "0+12", "e2e_sum": "0+60", "e2e_count": "0+12"}, True),
    ("QueueTimeDominates", {"queue_sum": "0+6", "queue_count": "0+12", "e2e_sum": "0+60", "e2e_count": "0+12"}, False),
    ("QueueTimeDominates", {"queue_sum": "9+0", "queue_count": "9+0", "e2e_sum": "9+0", "e2e_count": "9+0"}, False),
    ("PrefillDominates", {"prefill_sum": "0+42", "prefill_count": "0+9", "e2e_sum": "0+60", "e2e_count": "0+9"}, True),
    ("PrefillDominates", {"prefill_sum": "0+30", "prefill_count": "0+9", "e2e_sum": "0+60", "e2e_count": "0+9"}, False),
    ("EngineUnderfilled", {"kv": "0.1+0"}, True),
    ("EngineUnderfilled", {"kv": "0.3+0"}, False),
    ("EngineUnderfilled", {"kv": "0.1+0", "running": "0+0"}, False),
]


@dataclass(frozen=True)
class Case:
    """Whether an alert fires at the end of planted series."""

    name: str
    alert: str
    series: list[dict[str, str]]
    minutes: int
    fires: bool

    def told(self) -> dict[str, Any]:
        expected = [{"labels": labels_of(self.alert), "value": 1}] if self.fires else []
        # The name stands in the query, so that promtool prints it where the case fails.
        query = f'count by (alertname, finding) (ALERTS{{alertname="{self.alert}",alertstate="firing"}}) # {self.name}'
        test = {"expr": query, "eval_time": f"{self.minutes}m", "exp_samples": expected}
        return {"interval": "1m", "input_series": self.series, "promql_expr_test": [test]}


def check(tmp_path: Path, engine: str, *cases: Case) -> None:
    """All cases in one run: promtool takes longer to begin than to evaluate one."""
    (tmp_path / "rules.yaml").write_text(rules_yaml([engine]))
    told = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [case.told() for case in cases]}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(told))
    done = promtool("test", "rules", tmp_path / "test.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def labels_of(alert: str) -> str:
    (finding,) = set(rule_table(ENGINES).filter(alert=alert)["finding"])
    return f'{{alertname="{alert}", finding="{finding}"}}'


@needs_promtool
def test_an_alert_fires_on_what_it_is_about_alone(tmp_path: Path) -> None:
    minutes = {"EngineUnderfilled": 64}
    cases = [
        Case(
            f"{alert} {changes}",
            alert,
            vllm(minutes.get(alert, MINUTES), **{**BUSY, **changes}),
            minutes.get(alert, MINUTES),
            fires,
        )
        for alert, changes, fires in CASES
    ]
    check(tmp_path, "vllm", *cases)


def test_every_alert_of_vllm_has_a_case_that_fires_and_one_that_does_not() -> None:
    shown = {(alert, fires) for alert, _, fires in CASES}
    assert shown == {(alert, fires) for alert in rule_table(["vllm"])["alert"] for fires in (True, False)}


@needs_promtool
def test_names_of_other_versions_and_of_collectors_are_read_and_count_once(tmp_path: Path) -> None:
    """0.11 exports the pool's use under an old and a new name; collectors turn the colon into an underscore."""
    both = vllm(MINUTES, **{**BUSY, "waiting": "4+0", "kv": "0.97+0", "old_kv": "0.2+0"})
    full = vllm(MINUTES, **{**BUSY, "waiting": "4+0", "kv": "0.97+0"})
    rewritten = [{**each, "series": each["series"].replace("vllm:", "vllm_")} for each in full]
    cases = [Case("both", "KvPoolFull", both, MINUTES, True), Case("_", "KvPoolFull", rewritten, MINUTES, True)]
    check(tmp_path, "vllm", *cases)


@needs_promtool
def test_ranks_of_sglang_are_one_engine(tmp_path: Path) -> None:
    """Every tensor-parallel rank repeats the counts; put together they are no two engines and no double queue."""
    told = {"token_usage": "0.97", "num_queue_reqs": "4", "num_running_reqs": "9"}
    series = [
        {"series": f"sglang:{name}{{{SGLANG.format(rank)}}}", "values": f"{value}+0x{MINUTES}"}
        for name, value in told.items()
        for rank in (0, 1)
    ]
    check(tmp_path, "sglang", Case("ranks", "KvPoolFull", series, MINUTES, True))


@needs_promtool
def test_growth_of_a_device(tmp_path: Path) -> None:
    name = 'DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-1",instance="n:9400"}'
    planted = {
        "leak": ("40000+20x500", True),
        "caches": ("40000+1x500", False),
        "start": ("100x200 40000+0x300", False),
        "flat": ("40000+0x500", False),
    }
    cases = [
        Case(what, "GpuMemoryGrows", [{"series": name, "values": values}], 500, fires)
        for what, (values, fires) in planted.items()
    ]
    check(tmp_path, "dcgm-exporter", *cases)


def test_every_rule_says_what_it_is_about_and_what_to_do() -> None:
    alerts = [rule for group in rules(ENGINES)["groups"] for rule in group["rules"] if "alert" in rule]
    assert alerts
    for alert in alerts:
        assert alert["labels"]["severity"] in ("critical", "warning", "info")
        area, _, cause = alert["labels"]["finding"].partition(".")
        assert area in ("batching", "memory") and cause
        assert all(alert["annotations"][name] for name in ("summary", "action", "threshold", "source"))


def test_the_flags_named_are_the_engine_s_own() -> None:
    actions = {(row["engine"], row["alert"]): row["action"] for row in rule_table(["vllm", "sglang"]).to_dicts()}
    assert "--max-num-seqs" in actions["vllm", "SequenceLimitBinds"]
    assert "--max-running-requests" in actions["sglang", "SequenceLimitBinds"]


def test_only_metrics_that_the_loaders_read_are_asked_for() -> None:
    text = rules_yaml(ENGINES)
    asked = {name for name in MEANINGS if f"({name})" in text or f"({name}[" in text}
    assert {"vllm:kv_cache_usage_perc", "sglang:token_usage", "tgi_queue_size", "DCGM_FI_DEV_FB_USED"} <= asked


def test_an_engine_without_rules_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="no engine to make rules for named 'vlm'"):
        rules(["vlm"])
