"""What vLLM's start-up lines say of its configuration: sizes of parallelism, KV pool, limits."""

from __future__ import annotations

import polars as pl

from infer_diag import redact

NEEDLES = (
    "non-default args: ",
    "args: Namespace(",
    "GPU KV cache size: ",
    "KV cache size: ",
    "Chunked prefill is enabled with ",
    "GPU blocks: ",
    "cuda blocks: ",
    "rocm blocks: ",
    "Maximum concurrency for ",
    "kv cache block size to ",
    "Automatically detected platform ",
)
"""Literals of lines that tell how the engine is configured."""

DEFAULT_BLOCK_TOKENS = 16
"""Tokens in a KV block on a GPU where nothing asks otherwise (`--block-size`, all versions that print blocks)."""

_BLOCK_TOKENS = (8, 16, 32, 64, 128, 256)
_SIZES = {"tensor": "(?:tensor_parallel_size|tensor-parallel-size)", "pipeline": "pipeline[_-]parallel[_-]size"}
_DATA = "data[_-]parallel[_-]size"
_GPUS = ("cuda", "rocm", "gpu")


def configured(records: pl.DataFrame) -> pl.DataFrame:
    """Rows of `deployments` (without `source_id`), one per line that tells of it; `deployed` ends them."""
    message = pl.col("message")
    begin = message.str.starts_with("Initializing a") | message.str.contains("version ", literal=True)
    served = message.str.contains("vllm serve ", literal=True)
    rows = records.filter((begin | served | message.str.contains_any(list(NEEDLES))).fill_null(False))
    version = pl.coalesce(
        message.str.extract(r"^Initializing an? (?:V[01] )?LLM engine \(v([^)]+)\)"),
        message.str.extract(r"^vLLM API server version (\S+)"),
        message.str.extract(r"^[^A-Za-z0-9]+version ([0-9]\S*)$"),
    )
    kv_tokens = (
        message.str.extract(r"KV cache size: ([0-9,]+) tokens").str.replace_all(",", "").cast(pl.UInt64, strict=False)
    )
    return rows.select(
        "line",
        message.str.extract(r"\bmodel='?[=:]? ?'([^']+)'").alias("model"),
        version.alias("engine_version"),
        message.str.extract(r"\bquantization=(?:'|)([A-Za-z][\w-]*)").replace("None", None).alias("precision"),
        kv_tokens.alias("kv_cache_tokens"),
        _stated(r"max[_-]num[_-]seqs").cast(pl.UInt32, strict=False).alias("max_running_count"),
        _stated(r"max[_-]num[_-]batched[_-]tokens").cast(pl.UInt32, strict=False).alias("max_batch_tokens"),
        redact.redacted(message.str.extract(r"^non-default args: (.+)$").str.slice(0, 2000)).alias("flags"),
        *_parallel(message),
        *_blocks(message),
    )


def _stated(name: str) -> pl.Expr:
    """A setting as configurations (`name=4`), arguments (`'name': 4`) and command lines (`--name 4`) print it."""
    return pl.col("message").str.extract(rf"\b{name}'?(?:[=:] ?| )(\d+)").cast(pl.UInt64, strict=False)


def _parallel(message: pl.Expr) -> list[pl.Expr]:
    platform = pl.coalesce(
        message.str.extract(r"^Automatically detected platform (\w+)"),
        message.str.extract(r"\bdevice_config=(\w+)"),
        message.str.extract(r"^(?:# )?(\w+) blocks: "),
        message.str.extract(r"^(\w+) KV cache size: "),
    ).str.to_lowercase()
    # Arguments that are left out have their default, which is 1 for each.
    whole = message.str.starts_with("non-default args: ") | message.str.contains("args: Namespace(", literal=True)
    return [
        pl.coalesce(_stated(_SIZES["tensor"]), message.str.extract(r" -tp (\d+)").cast(pl.UInt64)).alias("_tensor"),
        _stated(_SIZES["pipeline"]).alias("_pipeline"),
        pl.coalesce(_stated(_DATA), message.str.extract(r" -dp (\d+)").cast(pl.UInt64)).alias("_data"),
        pl.when(whole).then(True).alias("_arguments"),
        platform.alias("_platform"),
    ]


def _blocks(message: pl.Expr) -> list[pl.Expr]:
    concurrency = message.str.extract_groups(
        r"Maximum concurrency for (?P<length>[0-9,]+) tokens per request: (?P<times>[0-9.]+)x"
    ).struct
    length = concurrency.field("length").str.replace_all(",", "").cast(pl.Float64, strict=False)
    return [
        message.str.extract(r"^(?:# )?(?:GPU|cuda|rocm) blocks: (\d+)").cast(pl.UInt64, strict=False).alias("_blocks"),
        pl.coalesce(
            message.str.extract(r"kv cache block size to (\d+)").cast(pl.UInt64, strict=False),
            _stated(r"block[_-]size"),
        ).alias("_block_tokens"),
        (length * concurrency.field("times").cast(pl.Float64, strict=False)).alias("_room_tokens"),
    ]


def deployed(rows: pl.DataFrame) -> pl.DataFrame:
    """One row per start with what its lines say together: GPUs of an engine, engines side by side, and KV tokens.

    gpu_count = tensor · pipeline parallel size. kv_cache_tokens = blocks · tokens of a block: as stated, else as the
    line on concurrency implies, else the version's default, where the version is told.
    """
    if "_tensor" not in rows.columns:
        return rows
    on_gpu = pl.col("_platform").is_in(_GPUS) | pl.col("_platform").is_null()
    one = pl.when(pl.col("_arguments") & pl.col("_platform").is_in(_GPUS)).then(pl.lit(1, pl.UInt64))
    tensor = pl.coalesce("_tensor", one)
    implied = (pl.col("_room_tokens") / pl.col("_blocks").cast(pl.Float64)).round().cast(pl.UInt64, strict=False)
    implied = pl.when(implied.is_in(_BLOCK_TOKENS)).then(implied)
    usual = pl.when(pl.col("engine_version").is_not_null()).then(pl.lit(DEFAULT_BLOCK_TOKENS, pl.UInt64))
    block_tokens = pl.coalesce("_block_tokens", implied, usual)
    return rows.with_columns(
        pl.when(on_gpu)
        .then(tensor * pl.col("_pipeline").fill_null(1))
        .cast(pl.UInt32, strict=False)
        .alias("gpu_count"),
        pl.when(on_gpu & tensor.is_not_null())
        .then(pl.col("_data").fill_null(1))
        .cast(pl.UInt32, strict=False)
        .alias("data_parallel_count"),
        pl.coalesce("kv_cache_tokens", pl.col("_blocks") * block_tokens).alias("kv_cache_tokens"),
    ).drop(pl.selectors.starts_with("_"))
