"""Nothing in a file makes a loader or the diagnosis fail in any way but by its own errors."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
import written
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import infer_diag as diag
from infer_diag.errors import DiagError, SourceError
from infer_diag.loaders import LOADERS, load

FIXTURES = {
    "vllm": "\n".join(written.vllm_lines()).encode(),
    "vllm in docker": "\n".join(written.vllm_lines(wrap=written.WRAPPERS["docker json-file"])).encode(),
    "sglang": "\n".join(written.SGLANG).encode(),
}
slow = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def diagnosed(path: Path, **options: object) -> dict[str, object] | None:
    """The document of a file, or None where it is refused; whatever else it raises fails the test."""
    try:
        document = diag.diagnose(load(path, **options)).to_dict()  # type: ignore[arg-type]
    except DiagError as error:
        assert "\n" not in str(error)
        return None
    json.dumps(document, allow_nan=False)
    return document


def mutated(data: bytes, seed: int) -> bytes:
    """The bytes with a few cuts, doublings, swaps and flips."""
    chance = random.Random(seed)
    for _ in range(chance.randint(1, 6)):
        at, size = chance.randrange(len(data) + 1), chance.choice((1, 3, 20, 200, 2000))
        piece = data[at : at + size]
        kind = chance.randrange(6)
        if kind == 0:
            data = data[:at] + data[at + size :]
        elif kind == 1:
            data = data[:at] + piece + data[at:]
        elif kind == 2:
            data = data[:at] + bytes(chance.randrange(256) for _ in range(size % 30)) + data[at + size % 30 :]
        elif kind == 3:
            data = data[:at] + piece[::-1] + data[at + size :]
        elif kind == 4:
            data = data[:at] + piece.translate(bytes.maketrans(b"0123456789", b"9876543210")) + data[at + size :]
        else:
            data = (
                data[:at]
                + chance.choice((b"\r", b"\n", b"\x1b[0m", b"\x00", b"nan", b"-1", b"9" * 40, b"{", b'"'))
                + data[at:]
            )
        data = data or b"x"
    return data


@pytest.mark.parametrize("name", FIXTURES)
@slow
@given(seed=st.integers(0, 2**32))
def test_a_mutated_log_is_read_or_refused(tmp_path: Path, name: str, seed: int) -> None:
    path = tmp_path / "mutated.log"
    path.write_bytes(mutated(FIXTURES[name], seed))
    diagnosed(path)
    diagnosed(path, format=name.split(maxsplit=1)[0])


@pytest.mark.parametrize("name", sorted(LOADERS))
@slow
@given(text=st.text(max_size=400))
@example(text="")
@example(text="*")
@example(text="^a$,b")
@example(text="Loading safetensors checkpoint shards: 9% Completed | 9/3 [99:99<?, ?it/s]")
@example(text="INFO 13-45 99:99:99 [x.py:1] Loading weights took 1.0 seconds")
@example(text="INFO 01-02 03:04:05 [x.py:1] Loading weights took 1.2.3 seconds")
def test_any_text_is_read_or_refused(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / "any.log"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    diagnosed(path, format=name)


def test_an_empty_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "empty.log").write_bytes(b"")
    with pytest.raises(SourceError, match=r"empty\.log is empty"):
        load(tmp_path / "empty.log")


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "core").write_bytes(bytes(range(256)) * 100)
    with pytest.raises(SourceError, match="binary"):
        load(tmp_path / "core")


def test_a_folder_without_logs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="holds no file"):
        load(tmp_path)
    (tmp_path / "notes.txt").write_text("bread, milk\n")
    (tmp_path / "more.txt").write_text("eggs\n")
    with pytest.raises(SourceError, match=r"nothing in .* could be read"):
        load(tmp_path)


def test_a_path_that_is_not_there_is_refused() -> None:
    with pytest.raises(SourceError, match="does not exist"):
        load("no/such/file.log")


def test_readable_files_of_a_folder_are_read_and_the_others_left(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("bread, milk\n")
    (tmp_path / "server.log").write_bytes(FIXTURES["vllm"])
    assert len(load(tmp_path).sources) == 1


@pytest.mark.parametrize("piece", ["Capture a ", "INFO 06-13 11:36:30 [a.py:24] ", "[GIN] ", '{"line": "', "(", "\t"])
def test_text_without_line_breaks_is_told_in_one_pass(tmp_path: Path, piece: str) -> None:
    (tmp_path / "odd.log").write_text("x " + piece * ((1 << 18) // len(piece)))
    with pytest.raises(SourceError):
        load(tmp_path / "odd.log")


def test_a_refusal_quotes_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "settings.env"
    path.write_text(f"HF_TOKEN=hf_{'a1b2c3d4' * 4}\nMODE=1\n")
    with pytest.raises(SourceError) as refused:
        load(path)
    assert "HF_TOKEN=[redacted]" in str(refused.value)
    assert "a1b2" not in str(refused.value)


def test_a_glob_may_name_folders_and_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run-1").mkdir()
    (tmp_path / "run-1" / "server.log").write_bytes(FIXTURES["vllm"])
    monkeypatch.setenv("HOME", str(tmp_path))
    for named in (str(tmp_path / "run-*"), "~/run-*/*.log"):
        assert [source.path for source in load(named).sources] == [str(tmp_path / "run-1" / "server.log")]


def test_a_huge_line_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "huge.log"
    with path.open("wb") as out:
        out.write(FIXTURES["vllm"] + b"\n" + b"INFO 03-14 09:30:00 [logger.py:1] Received request a-0: prompt: '")
        for _ in range(80):
            out.write(b"word " * 200_000)
        out.write(b"'\n" + FIXTURES["vllm"])
    document = diagnosed(path)
    assert document is not None
    assert len(document["starts"]) == 2  # type: ignore[arg-type]


def test_a_compressed_file_that_breaks_off_is_marked_cut(tmp_path: Path) -> None:
    packed = gzip.compress(FIXTURES["vllm"] * 200)
    (tmp_path / "cut.log.gz").write_bytes(packed[: len(packed) // 2])
    source = load(tmp_path / "cut.log.gz").sources[0]
    assert source.cut
    assert "breaks off" in source.notes[0]


def test_secrets_do_not_reach_the_frames(tmp_path: Path) -> None:
    key = "hf_" + "aB3dE5gH7jK9mN1pQ3sT5vW7"
    lines = [
        *written.vllm_lines()[:1],
        f"(APIServer pid=11) INFO 03-14 09:26:54 [utils.py:1] non-default args: {{'api_key': ['{key}'], 'model': 'org/m', 'hf_token': '{key}'}}",
        f"ERROR 03-14 09:26:55 [core.py:1] EngineCore failed to start: 401 for https://user:{key}@hub.example/x",
        f"INFO 03-14 09:26:55 [core.py:1] Loading weights took {key} seconds",
        *written.vllm_lines()[1:],
    ]
    (tmp_path / "a.log").write_text("\n".join(lines))
    recording = load(tmp_path / "a.log")
    for name in recording.rows():
        assert key not in getattr(recording, name).write_json()
    assert key not in diag.diagnose(recording).to_json()
