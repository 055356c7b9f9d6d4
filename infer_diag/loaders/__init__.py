"""Files to recordings: `load` finds out what each file is and reads it into the frames of `infer_diag.schema`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from zoneinfo import ZoneInfo

from infer_diag.errors import DiagError, SourceError, UnknownNameError
from infer_diag.loaders.exposition import folders
from infer_diag.loaders.exposition.address import address, is_address
from infer_diag.loaders.exposition.moments import Moment
from infer_diag.loaders.files import LogFile, find
from infer_diag.loaders.joining import joined
from infer_diag.loaders.loader import Options
from infer_diag.loaders.loki import in_order_of_time, placed
from infer_diag.loaders.one_clock import aligned
from infer_diag.loaders.otlp import logs as otlp_logs
from infer_diag.loaders.registry import FORMATS, LOADERS
from infer_diag.loaders.sniff import by_magic, is_binary, sniffed
from infer_diag.recording import Recording, Skipped, combine
from infer_diag.redact import redact

__all__ = ["FORMATS", "LOADERS", "load"]


def load(
    *paths: str | Path,
    format: str | None = None,
    year: int | None = None,
    tz: str | None = None,
    strict: bool = False,
    columns: Mapping[str, str | tuple[str, str]] | None = None,
    start: Moment = None,
    end: Moment = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Recording:
    """One recording of the logs that the paths name; files among them that cannot be read are listed in `skipped`.

    Args:
        paths: files (compressed ones too), folders, globs, `sample:NAME`, fsspec URLs, `prometheus+http://HOST:PORT`.
        format: name out of `FORMATS` to use instead of sniffing.
        year: year of stamps that print none.
        tz: time zone (IANA name) of stamps that name none.
        strict: raise at the first damaged line instead of keeping it in `rejected`.
        columns: for `format="table"`, our columns to the file's: `{"arrival_s": "start", "ttft_s": ("ttft", "ms")}`.
        start, end: for a server, from when to when: datetimes, ISO text or `-2h`; by default the hour up to now.
        progress: called with (path, bytes read, bytes in all) as the reading goes on.

    Raises:
        SourceError: nothing in the paths could be read.
        UnknownNameError: there is no such format.
        LogFormatError: `strict` and a line is damaged.
    """
    options = Options(year, tz, strict, columns=columns, start=start, end=end)
    _check(paths, format, options)
    recordings, refused = _all_read(find(paths), format, options, progress)
    if not recordings:
        raise refused[0][1] if len(refused) == 1 else _none_read(paths, [error for _, error in refused])
    skipped = tuple(Skipped(label, error.message) for label, error in refused)
    return joined(combine(aligned(recordings))).replace(skipped=skipped)


def _all_read(
    files: list[LogFile], format: str | None, options: Options, progress: Callable[[str, int, int], None] | None
) -> tuple[list[Recording], list[tuple[str, SourceError]]]:
    """Recordings, and what could not be read with the reason."""
    recordings: list[Recording] = []
    refused: list[tuple[str, SourceError]] = []
    if format is None or format in folders.FORMATS:
        recordings, files = folders.read_together(files, options, lambda file: _counting(file, progress))
    for file in files:
        try:
            recordings.append(_read(file, format, options, progress))
        except SourceError as error:
            refused.append((file.label, error))
    return recordings, refused


def _read(
    file: LogFile,
    format: str | None,
    options: Options,
    progress: Callable[[str, int, int], None] | None,
) -> Recording:
    if is_address(file.path):
        # Who reads a file should not wait until HTTP and TLS are imported.
        from infer_diag.loaders.exposition import server

        return server.load(file, options=replace(options, on_bytes=_counting(file, progress)))
    signatures = [(loader.name, loader.signature) for loader in LOADERS.values()]
    binary = by_magic(file.begin(), signatures)
    head = file.head() if binary is None else file.begin()
    if not head.strip():
        raise SourceError(f"{file.label} is empty", hint="check that the log was written and not rotated away")
    opened = otlp_logs.opened(file, head, options, binary=binary == "otlp")
    if opened is not file:
        file, head, binary = opened, opened.head(), None
    reads_binary = binary is not None if format is None else LOADERS[format].signature.is_binary
    if is_binary(head) and not reads_binary:
        raise SourceError(f"{file.label} is a binary file, not a log", hint="give the server's text log")
    ordered = file if binary is not None else in_order_of_time(file, head, options)
    file, head = ordered, head if ordered is file else ordered.head()
    name = format or binary or sniffed(head, signatures)
    if name is None:
        raise _in_no_format(file, head)
    options = replace(options, on_bytes=_counting(file, progress))
    recording = placed(LOADERS[name].load(file, options=options), file)
    if not recording.rows():
        lines = recording.sources[0].lines
        raise SourceError(
            f"{file.label} looks like {name}, but none of its {lines} lines tells of a start or of serving",
            hint="give the engine's log from its start, at its default log level",
        )
    return recording


def _counting(file: LogFile, progress: Callable[[str, int, int], None] | None) -> Callable[[int], None]:
    done = 0

    def count(size: int) -> None:
        nonlocal done
        done += size
        if progress is not None:
            progress(file.label, done, file.size_bytes)

    return count


def _in_no_format(file: LogFile, head: bytes) -> SourceError:
    # Any file may be named by mistake, one of secrets too: redacted first and cut then, or half a secret would pass.
    first = redact(head.strip().splitlines()[0][:4096].decode("utf-8", "replace"))[:60]
    return SourceError(
        f"{file.label} is in no format that infer_diag reads (it begins {first!r})",
        hint="infer-diag formats lists them; format= names one where you know better",
    )


def _check(paths: tuple[str | Path, ...], format: str | None, options: Options) -> None:
    if not paths:
        raise SourceError("no path was given", hint="give a file, a folder, a glob or sample:NAME")
    if (options.start or options.end) is not None and not any(is_address(path) for path in paths):
        raise DiagError(
            "start= and end= choose the time of what a server holds, and no path names one",
            hint="diag.load('prometheus+http://host:9090', start='-2h'); a file is read whole",
        )
    if format is not None and format not in LOADERS:
        raise UnknownNameError("format", format, FORMATS)
    if (options.columns is not None) != (format == "table"):
        raise DiagError(
            "columns= and format='table' belong together: the one says what the columns of the other mean",
            hint="diag.load(path, format='table', columns={'arrival_s': 'start', 'output_tokens': 'n_out'})",
        )
    try:
        ZoneInfo("UTC" if options.tz is None else options.tz)
    except (KeyError, ValueError, OSError) as error:
        raise DiagError(
            f"there is no time zone named {options.tz!r:.62}", hint="use an IANA name such as Asia/Shanghai"
        ) from error


def _none_read(paths: tuple[str | Path, ...], refused: list[SourceError]) -> SourceError:
    listed = "; ".join(error.message for error in refused[:3])
    named = ", ".join(address(str(path)).label if is_address(path) else str(path) for path in paths[:3])
    return SourceError(f"nothing in {named} could be read: {listed}", hint="infer-diag formats lists what can be read")
