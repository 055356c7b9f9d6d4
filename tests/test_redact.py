"""A secret never survives; the words of an inference log do."""

from __future__ import annotations

import string

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infer_diag.redact import MARK, redact, redacted

ALNUM = string.ascii_letters + string.digits
SECRET = st.builds(str.__add__, st.sampled_from(ALNUM), st.text(ALNUM + "_-+/=.~", min_size=14, max_size=40))
PLAIN = st.text(ALNUM, min_size=36, max_size=36)

NAMED = [
    "Authorization: Bearer {}",
    "authorization: {}",
    "Proxy-Authorization: Basic {}",
    """curl -H "Authorization: Bearer {}" http://127.0.0.1:8000/v1/models""",
    "(b'authorization', b'Bearer {}'), (b'host', b'x')",
    "{{'api_key': ['{}'], 'port': 8000}}",
    "{{'api_key': ['first', '{}'], 'port': 8000}}",
    "args: Namespace(api_key=None, hf_token='{}', model='m')",
    "--api-key {} --port 8000",
    "--hf-token={}",
    "['--api-key', '{}', '--port', '1']",
    '"hf_token": "{}"',
    '{{\\"hf_token\\": \\"{}\\", \\"a\\": 1}}',
    "api_key=SecretStr('{}')",
    "OPENAI_API_KEY={}",
    "export HF_TOKEN={}",
    "MY_SECRET: {}",
    "aws_secret_access_key = {}",
    "password='{} and words'",
    "passwd: {}",
    "x-api-key: {}",
    "clientSecret => {}",
    "secret={}",
    '"secret": "{}"',
    "Cookie: session={}; theme=dark",
    "GET /v1/models?api_key={}&page=2 HTTP/1.1",
    "https://cdn.example/f.safetensors?X-Amz-Signature={}&X-Amz-Date=1",
]
PREFIXED = [
    "sk-{}",
    "key is sk-{}, be careful",
    "\\nsk-{}",
    "\x1b[0msk-{}",
    "hf_{}",
    "'hf_{}'",
    "ghp_{}",
    "glpat-{}",
    "xoxb-{}",
    "nvapi-{}",
    "eyJ{0}.{0}.{0}",
    "postgres://user:{}@db.internal:5432/x",
    "redis://:{}@10.0.0.1",
    "https://user:{}/more@host/path",
    "Bearer {}",
    "request with bearer {} refused",
    "token=a1{}",
    '"token": "a1{}"',
    "-----BEGIN RSA PRIVATE KEY-----\n{0}\n{0}\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\\n{}",
]
KEPT = [
    "max_num_batched_tokens=8192",
    "Avg generation throughput: 6.5 tokens/s, Running: 13 reqs",
    "Prefill batch. #new-seq: 1, #new-token: 8192, #cached-token: 0, token usage: 0.50",
    "#token: 900",
    "num_tokens=12345",
    "tokenizer='openai/gpt-oss-120b', tokenizer_mode=auto",
    "prompt_token_ids: [1, 2]",
    "eos_token='</s>', pad_token_id=None",
    "EOS token        = 2 '</s>'",
    "api_key=None, hf_token=None, port=8000",
    "'api_key': None, 'token': null}",
    "http://127.0.0.1:8000/v1?user=a@example.org",
    "distributed_init_method=tcp://127.0.0.1:35375 backend=nccl",
    "ssh://git@host/repo",
    "task-12345678-abcdefghijkl",
    "risk-assessment-module-number-twelve",
    "bearer authentication is on",
    'MountVolume.SetUp failed for volume "hf-secret" : secret "hf" not found',
    "token=12, token=3.5",
    "first token: 0.5 s, time per token: 12 ms",
    "--tokenizer Qwen/Qwen3-8B --max-model-len 8192",
    "--api-key --port 8000",
    "skip_special_tokens=True",
    "sha256:" + "ab" * 32,
    "ab" * 32,
    "commit " + "0123456789" * 4,
    "Loading safetensors checkpoint shards: 100% Completed | 15/15 [00:05<00:00,  2.60it/s]",
]


@given(SECRET, st.sampled_from(NAMED))
@settings(deadline=None, max_examples=300)
def test_a_named_secret_never_survives(secret: str, context: str) -> None:
    assert secret not in redact("INFO 02-01 13:17:26 " + context.format(secret) + " end")


@given(PLAIN, st.sampled_from(PREFIXED))
@settings(deadline=None, max_examples=300)
def test_a_secret_told_by_its_form_never_survives(secret: str, context: str) -> None:
    assert secret not in redact("INFO " + context.format(secret) + " end")


@given(st.sampled_from(["AKIA", "ASIA"]), st.text(string.ascii_uppercase + string.digits, min_size=16, max_size=16))
@settings(deadline=None)
def test_cloud_key_pairs_go_together(kind: str, key: str) -> None:
    pair = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzzzzzzzzzz"
    text = redact(f"using {kind}{key}:{pair} for s3")
    assert key not in text and pair not in text


@given(st.text(max_size=200) | st.builds(str.format, st.sampled_from(NAMED + PREFIXED), SECRET))
@settings(deadline=None, max_examples=300)
def test_redacting_twice_changes_nothing(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


@pytest.mark.parametrize("line", KEPT)
def test_normal_log_text_is_kept(line: str) -> None:
    assert redact(line) == line


@given(st.text(string.ascii_letters + string.digits + "+/", min_size=64, max_size=64))
@settings(deadline=None)
def test_a_line_of_a_key_goes_even_alone(line: str) -> None:
    body = ("MIIEvQ" + line)[:64]
    assert body not in redact(f"before\n{body}\nafter")


def test_the_name_in_front_stays() -> None:
    assert redact("Authorization: Bearer abc123def456") == f"Authorization: Bearer {MARK}"
    assert redact("--api-key abc --port 1") == f"--api-key {MARK} --port 1"
    assert redact("postgres://u:p@h/db") == f"postgres://{MARK}@h/db"
    assert redact("hf_" + "a1" * 17) == f"hf_{MARK}"


def test_a_column_is_redacted_as_its_strings_are_and_null_stays_null() -> None:
    lines = [*KEPT, *(context.format("Abc123Abc123Abc123") for context in NAMED)]
    column = pl.Series("text", [*lines, None]).to_frame().select(redacted(pl.col("text")))["text"].to_list()
    assert column == [*map(redact, lines), None]
