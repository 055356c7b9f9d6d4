"""The grammar of `%diag`: verb first, recording second, options long; help and completion are read off it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable

from IPython.core.magic_arguments import MagicArgumentParser

from infer_diag import samples
from infer_diag.attribution.cost import REFERENCES
from infer_diag.errors import DiagError
from infer_diag.jupyter import completion, cost, verbs
from infer_diag.jupyter.export_verb import add_export_verb
from infer_diag.jupyter.live_verbs import add_live_verbs
from infer_diag.jupyter.panel import Panel
from infer_diag.jupyter.session import Session
from infer_diag.loaders import FORMATS

Run = Callable[[Session, argparse.Namespace], Panel]
Code = Callable[[Session, argparse.Namespace], str]


def grammar(session: Session) -> argparse.ArgumentParser:
    """The parser of a `%diag` line; the recordings of `session` complete its second word."""
    parser: argparse.ArgumentParser = MagicArgumentParser(prog="%diag")
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB")

    def verb(name: str, run: Run, code: Code | None = None) -> argparse.ArgumentParser:
        sub: argparse.ArgumentParser = subparsers.add_parser(name, prog=f"%diag {name}", description=run.__doc__)
        sub.allow_abbrev = False
        sub.set_defaults(run=run, code_of=code, code=False)
        if code is not None:
            sub.add_argument("--code", action="store_true", help="print the Python that does the same")
        return sub

    _load(verb("load", verbs.load_verb, verbs.load_code))
    verb("list", verbs.list_verb)
    _recording(verb("summary", verbs.summary_verb, verbs.summary_code), session)
    coldstart = verb("coldstart", verbs.coldstart_verb, verbs.coldstart_code)
    _recording(coldstart, session)
    start = coldstart.add_argument("--start", metavar="START", help="one start of several, such as start-2")
    completion.completed(start, lambda token: _starts(session))
    _batching(verb("batching", verbs.batching_verb, verbs.batching_code), session)
    _memory(verb("memory", verbs.memory_verb, verbs.memory_code), session)
    _cost(verb("cost", cost.cost_verb, cost.cost_code), session)
    _compare(verb("compare", cost.compare_verb, cost.compare_code), session)
    add_live_verbs(verb, session)
    report = verb("report", verbs.report_verb, verbs.report_code)
    _recording(report, session)
    out = report.add_argument(
        "--out", metavar="FILE", default="report.html", help="file.html, .md or .ipynb (report.html)"
    )
    completion.completed(out, completion.paths)
    _recording(add_export_verb(verb), session)
    verb("samples", verbs.samples_verb, verbs.samples_code)
    helped = verb("help", lambda session, options: verbs.help_of(parser, options.about))
    helped.description = "The grammar of one verb, or the list of all."
    helped.add_argument("about", metavar="VERB", nargs="?", choices=list(subparsers.choices), help="a verb")
    return parser


def _load(parser: argparse.ArgumentParser) -> None:
    path = parser.add_argument(
        "path", metavar="PATH", nargs="+", help="files, folders, globs, prometheus+http://HOST:PORT or sample:NAME"
    )
    completion.completed(path, _loadable)
    parser.add_argument("--as", dest="name", metavar="NAME", help="name of the recording (the file's stem)")
    form = parser.add_argument("--format", metavar="FORMAT", help="read every file as this format")
    completion.completed(form, lambda token: FORMATS)
    parser.add_argument("--year", metavar="YEAR", type=int, help="year of stamps that print none")
    parser.add_argument("--tz", metavar="ZONE", help="time zone of stamps that name none, such as Asia/Shanghai")
    parser.add_argument(
        "--start", metavar="TIME", help="for a Prometheus server: begin at this time, such as -2h (-1h)"
    )
    parser.add_argument("--end", metavar="TIME", help="for a Prometheus server: end at this time (now)")
    parser.add_argument("--strict", action="store_true", help="fail at the first damaged line")


def _batching(parser: argparse.ArgumentParser, session: Session) -> None:
    _recording(parser, session)
    parser.add_argument(
        "--what-if", metavar="CHANGES", help="predict with other settings: max_num_seqs=512,scheduler=orca"
    )
    parser.add_argument("--losses", action="store_true", help="where the engines' time went, part by part")


def _memory(parser: argparse.ArgumentParser, session: Session) -> None:
    _recording(parser, session)
    parser.add_argument("--at", metavar="TIME", help="moment of the block map, such as 12.5s (the last one)")
    parser.add_argument(
        "--what-if", metavar="SETTINGS", help="replay under other settings: expandable_segments,max_split_size_mb=128"
    )


def _cost(parser: argparse.ArgumentParser, session: Session) -> None:
    what = parser.add_argument(
        "recording",
        metavar="WHAT",
        nargs="?",
        help="a recording, a fleet, or a folder of deployments (the last loaded)",
    )
    completion.completed(what, lambda token: [*session.names(), *completion.paths(token)])
    reference = parser.add_argument(
        "--reference", metavar="REFERENCE", default="median", help="median, best, roofline or a deployment (median)"
    )
    completion.completed(reference, lambda token: REFERENCES)
    parser.add_argument("--deployment", metavar="NAME", help="one deployment of the fleet, as a waterfall")
    _price(parser)


def _compare(parser: argparse.ArgumentParser, session: Session) -> None:
    for name, about in (("one", "the recording that is asked about"), ("other", "the one that it is compared with")):
        completion.completed(parser.add_argument(name, metavar=name.upper(), help=about), lambda token: session.names())
    _price(parser)


def _price(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--price", metavar="DOLLARS", type=float, help="dollars per GPU and hour where nothing says")


def _recording(parser: argparse.ArgumentParser, session: Session) -> None:
    action = parser.add_argument("recording", metavar="RECORDING", nargs="?", help="its name (the last one loaded)")
    completion.completed(action, lambda token: session.names())


def _loadable(token: str) -> Iterable[str]:
    if token and "sample:".startswith(token[:7]):
        yield from (f"sample:{name}" for name in samples.names())
    yield from completion.paths(token)
    if not token:
        yield "sample:"


def _starts(session: Session) -> Iterable[str]:
    try:
        return list(session.get(None).recording.starts["start_id"])
    except DiagError:
        return []
