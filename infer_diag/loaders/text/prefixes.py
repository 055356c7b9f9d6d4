"""What stands in front of a message: collectors' stamps, process and rank names, the engine's own stamp and level.

Prefixes nest in any order and number, so they are peeled one at a time until none is left. The last stamp peeled is
the engine's (inner), any before it a collector's (outer).
"""

from __future__ import annotations

import polars as pl


def ascii_classes(pattern: str) -> str:
    """The pattern with ASCII digits and word characters only: a tenth of the size, several times the speed."""
    return pattern.replace(r"\d", "[0-9]").replace(r"\w", "[0-9A-Za-z_]")


LEVEL = r"(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|TRACE)"
_DATE = r"\d{4}[-/]\d\d[-/]\d\d"
_CLOCK = r"\d\d:\d\d:\d\d"
_ZONE = r"(?:Z|\s?UTC|[+-]\d\d:?\d\d)"
_PROCESS = r"\([A-Za-z][\w:.-]*(?:,? (?:rank|pid|ip|node|actor)=[^(),\s]+)+\)"

VLLM_STAMP = rf"{LEVEL} \d\d-\d\d {_CLOCK}(?:[.,]\d{{1,6}})? (?:\[[^\]\s]+:\d+\]|[\w./-]+:\d+\])"
SGLANG_STAMP = rf"\[(?:{_DATE} )?{_CLOCK}(?:[.,]\d{{1,6}})?(?: [A-Z]{{2,4}}\d+)*\]"
ENGINE_STAMP = rf"(?:{VLLM_STAMP}|{SGLANG_STAMP})"
"""A stamp that only an engine writes: wherever it stands, a record begins there."""

RECORD_BEGIN = ascii_classes(rf"(?:(?:{_DATE}T{_CLOCK}(?:\.\d+)?{_ZONE} )?(?:{_PROCESS} ){{0,3}}){ENGINE_STAMP}")
"""A record's begin inside a line, with the prefixes that belong to it."""

ANSI = r"(?:\x1b|\^\[|\\u001[bB]|\\x1[bB]|#x1B|#033)\[[0-9;?]*[A-Za-z]|\x1b\[?|\[\d{1,3}(?:;\d{1,3})*m"
"""Colour codes, also where a paste turned the escape character into text or lost it."""

_PREFIX = "|".join(
    (
        # TorchServe around the output of its workers; Ray Serve's own logger.
        rf"(?P<outer_torchserve>{_DATE}[T ]{_CLOCK},\d{{3}}) \[(?:{LEVEL}|FATAL) *\] [\w.-]+ [\w.$]+ - ?",
        rf"{LEVEL} (?P<inner_ray>{_DATE} {_CLOCK},\d{{3}}) (?:[\w.#:/-]+ )+--? ",
        # Go's log/slog as logfmt; Rust's tracing, which pads the level to five; llama.cpp: how long its process runs.
        rf'time="?(?P<inner_logfmt>{_DATE}T{_CLOCK}(?:\.\d+)?{_ZONE})"? level=\w+ (?:source=\S+ )?msg="?',
        rf"(?P<inner_tracing>{_DATE}T{_CLOCK}\.\d+Z)  (?:INFO|WARN) ",
        r"(?:\[(?P<child>\d\d\d\d\d?)\] )?(?P<inner_uptime>\d+\.\d\d\.\d\d\d\.\d\d\d) [A-Z] ",
        r"\[(?P<inner_epoch>1\d\d\d\d\d\d\d\d\d)\] ",
        # Python's logging module: an engine's or a library's own stamp with milliseconds and a level.
        rf"(?P<inner_python>{_DATE} {_CLOCK}[.,]\d{{3,6}})\s*(?:[-|]\s*)?(?:[\w.]+\s*[-|]\s*)?"
        rf"\[?{LEVEL}\b\]?\s*[-|:]?\s*(?:\d+ )?(?:\[?[\w./]+:\d+\]?\s*[-|:]?\s*)?(?:[\w.]+: )?",
        # The same without milliseconds, where the place of the call shows that a logger wrote it.
        rf"(?P<inner_logger>{_DATE} {_CLOCK})\s*(?:[-|]\s*)?{LEVEL}\s*(?:[-|]\s*)?(?:(?P<pid>\d+) )?"
        rf"(?:\[?[\w./]+(?::\w+)?:\d+\]?\s*(?:[-|:]\s*)?|std(?:out|err) \| )",
        rf"(?P<inner_dashed>{_DATE} {_CLOCK}) +[-|] +(?:[\w.]+ +[-|] +)?{LEVEL} +[-|] +",
        rf"(?P<inner_vllm>{LEVEL} \d\d-\d\d {_CLOCK}(?:[.,]\d{{1,6}})?) \[?[\w./<>-]+:\d+\] ?",
        # SGLang's stamp with its ranks; LMDeploy writes one like it in front of its statistics. A paste may have lost
        # the first bracket; the second one still tells it.
        rf"\[?(?P<inner_sglang>(?:{_DATE} )?{_CLOCK}(?:[.,]\d{{1,6}})?)"
        rf"(?P<ranks>(?: [A-Z]{{2,4}}\d+| Engine \d+)*)\] ?",
        # TensorRT-LLM: a stamp with the month first where Python writes it, then who writes and a letter for the level.
        rf"\[(?P<inner_tensorrt>\d\d/\d\d/\d{{4}}-{_CLOCK})\] ?",
        rf"\[(?:TRT-LLM|TRT|TensorRT-LLM)\]\s?(?:\[(?:[VIWEF]|{LEVEL})\]\s?)?",
        rf"\[(?:[VIWEF]|{LEVEL}|_torch)\]\s?",
        # Triton: Google's log format, the message in quotes since 2024.
        rf"(?P<inner_glog>[VIWEF]\d{{4}} {_CLOCK}\.\d{{6}})\s+\d+ [\w./-]+:\d+\]\s?\"?",
        r"[VIWEF] \d+ [\w./-]+\.(?:cc|h):\d+\]\s?\"?",
        # fluentd's own output: stamp, zone, tag, and the record as JSON.
        rf"(?P<outer_fluentd>{_DATE} {_CLOCK}(?:\.\d+)? [+-]\d{{4}}) [\w.*-]+: ",
        # Container runtimes, docker, kubectl --timestamps, CI runners; brackets as Jenkins writes them.
        rf"\[?(?P<outer>{_DATE}[T ]{_CLOCK}(?:[.,]\d{{1,9}})?{_ZONE}?)\]?"
        r"(?: (?:stdout|stderr) (?P<partial>[FP])| \d\d[OE][ +]?)?(?:[:|\s]+|$)",
        r"(?P<outer_syslog>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?) [\w.-]+ [\w@./-]+(?:\[\d+\])?: ?",
        r"[\w.-]+ [\w@./-]+\[\d+\]: ",
        r"\[(?:pod/)?(?P<pod>[a-z0-9][\w.-]*/[\w.-]+)\] ?",
        r"(?P<service>[A-Za-z0-9][\w.-]*?)\s+\| ",
        rf"(?P<process>{_PROCESS})\s?",
        r"\((?:pid=\d+(?:, ip=[^()\s]+)?|raylet(?:, ip=[^()\s]+)?|autoscaler \+\w+)\)\s?",
        r"\[(?:rank|RANK |gpu=|gpu_id=)(?P<rank>\d+)\]:?\s?",
        r"(?:#\d+ \d+\.\d+ )",
        rf"(?P<level>{LEVEL}):(?:\s+|$)",
        r"[│┃║▏▕▌>]+\s*",
    )
)
_PEEL = ascii_classes(rf"^\s*(?:{_PREFIX})(?P<message>.*)$")
_COMMON = ascii_classes(
    rf"^\s*(?:(?P<process>{_PROCESS}) ?)?"
    rf"(?:{LEVEL} (?P<vllm>\d\d-\d\d {_CLOCK}(?:[.,]\d{{1,6}})?) \[?[\w./<>-]+:\d+\]"
    rf"|\[(?P<sglang>(?:{_DATE} )?{_CLOCK}(?:[.,]\d{{1,6}})?)(?P<ranks>(?: [A-Z]{{2,4}}\d+)*)\])"
    r" (?P<message>[A-Za-z].*)$"
)
"""What nearly every line of a plain log begins with; the rest goes through the loop that peels one prefix at a time."""

_INNER = (
    "inner_python",
    "inner_logger",
    "inner_dashed",
    "inner_vllm",
    "inner_sglang",
    "inner_tensorrt",
    "inner_glog",
    "inner_ray",
    "inner_logfmt",
    "inner_tracing",
    "inner_epoch",
)
_OUTER = ("outer", "outer_syslog", "outer_torchserve", "outer_fluentd")
_STAMPS = (*_INNER, *_OUTER, "inner_uptime")
_MAX_DEPTH = 8
_KEPT = ("pod", "service", "rank", "ranks", "partial", "pid")


def clean(text: pl.Expr) -> pl.Expr:
    """Text without colour codes, carriage returns, control characters, blank padding and terminal borders."""
    return (
        text.str.replace_all(ANSI, "")
        .str.replace_all(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", "")
        .str.strip_chars_end(" \t\r\n│┃║▏▕▐")
    )


def peeled(frame: pl.DataFrame) -> pl.DataFrame:
    """Splits the column `text` into prefixes and `message`.

    Adds `message`, `outer` and `inner` (raw stamps), `process`, `pid`, `ip`, `rank`, `ranks`, `pod`, `service` and
    `partial`; all strings, null where the text has none.
    """
    work = frame.with_columns(pl.lit(None, pl.String).alias(name) for name in _COLUMNS).with_row_index("_row")
    common = work.with_columns(pl.col("text").str.extract_groups(_COMMON).alias("_got"))
    plain = pl.col("_got").struct.field("message").is_not_null() & ~_levelled(pl.col("_got").struct.field("message"))
    done = [_plainly(common.filter(plain))]
    active = common.filter(~plain).drop("_got").with_columns(pl.col("text").alias("message"))
    for _ in range(_MAX_DEPTH):
        if active.is_empty():
            break
        step = active.with_columns(pl.col("message").str.extract_groups(_PEEL).alias("_got"))
        stuck = pl.col("_got").struct.field("message").is_null()
        done.append(step.filter(stuck).drop("_got"))
        active = _absorbed(step.filter(~stuck))
    whole = pl.concat([*done, active], how="diagonal").sort("_row").drop("_row")
    return whole.with_columns(
        pl.col("message").str.strip_chars(),
        pl.coalesce(pl.col("process").str.extract(r"pid=(\d+)"), "pid").alias("pid"),
        pl.col("process").str.extract(r"ip=([^,)\s]+)").alias("ip"),
        pl.coalesce(pl.col("process").str.extract(r"rank=(\d+)"), pl.col("rank")).alias("rank"),
        pl.col("process").str.extract(r"\(([\w:.-]+)").alias("process"),
        pl.col("inner").str.replace(rf"^{LEVEL} ", ""),
    )


def _levelled(message: pl.Expr) -> pl.Expr:
    """Whether a level follows the engine's stamp, as that of the web server inside SGLang does."""
    return message.str.contains(f"^{LEVEL}:").fill_null(False)


def _plainly(common: pl.DataFrame) -> pl.DataFrame:
    got = {name: pl.col("_got").struct.field(name) for name in ("process", "vllm", "sglang", "ranks", "message")}
    return common.with_columns(
        got["message"].alias("message"),
        got["process"].alias("process"),
        got["ranks"].alias("ranks"),
        pl.coalesce(got["vllm"], got["sglang"]).alias("inner"),
    ).drop("_got")


_COLUMNS = ("outer", "inner", "process", *_KEPT)


def _absorbed(step: pl.DataFrame) -> pl.DataFrame:
    """Takes one peeled prefix into its columns; a stamp that meets an earlier inner stamp turns that into the outer."""
    got = {name: pl.col("_got").struct.field(name) for name in (*_STAMPS, *_KEPT, "process", "child", "message")}
    # An uptime begins anew with every process, so it counts only where nobody else tells the time.
    uptime = pl.when(pl.col("outer").is_null()).then(got["inner_uptime"])
    inner = pl.coalesce([*(got[name] for name in _INNER), uptime])
    outer = pl.coalesce([got[name] for name in _OUTER])
    got["service"] = pl.coalesce(got["service"], got["child"])
    return step.with_columns(
        pl.when(inner.is_not_null())
        .then(pl.coalesce("outer", "inner"))
        .otherwise(pl.coalesce("outer", outer))
        .alias("outer"),
        pl.coalesce(inner, "inner").alias("inner"),
        # The innermost process name is the one that wrote the record; Ray's and launchers' stand before it.
        pl.coalesce(got["process"], "process").alias("process"),
        *(pl.coalesce(got[name], name).alias(name) for name in _KEPT),
        got["message"].alias("message"),
    ).drop("_got")


def split_at_engine_stamp(frame: pl.DataFrame) -> pl.DataFrame:
    """Like `peeled`, but first looks for an engine's stamp within the line, so that unknown prefixes do no harm."""
    rest = pl.col("text").str.extract(rf"(?s)({RECORD_BEGIN}.*)$")
    found = frame.with_columns(rest.fill_null(pl.col("text")).alias("_rest"))
    known = peeled(found.with_columns(pl.col("_rest").alias("text")).drop("_rest"))
    ahead = found.select(pl.col("text").str.strip_suffix(pl.col("_rest")))
    if ahead.select((pl.col("text").str.strip_chars() != "").any()).item():
        front = peeled(ahead)
        mended = [pl.coalesce(known[name], front[name]).alias(name) for name in ("process", "ip", *_KEPT)]
        stamped = (
            pl.when(known["outer"].is_null())
            .then(pl.coalesce(front["outer"], front["inner"]))
            .otherwise(known["outer"])
        )
        known = known.with_columns(*mended, stamped.alias("outer"))
    return known
