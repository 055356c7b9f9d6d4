"""Secrets taken out of log text before anything shows or stores it.

One ordered list of Rust regexes serves single strings and whole columns alike; that engine matches in linear time,
so hostile text cannot make it slow. The name in front of a secret stays, so that a reader sees what was there.

What a reader cannot see goes too: terminal sequences, control characters, and marks without width or that turn the
direction of the text, which make it look like another one.
"""

from __future__ import annotations

import re

import polars as pl

MARK = "[redacted]"
MOST_CHARACTERS = 160

_SEQUENCES = r"\x1b\[[0-9;:<=>?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b\r\n]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]"
_UNSEEN = (
    r"[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    r"\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
_GONE = f"{_SEQUENCES}|{_UNSEEN}"
_CONTROL = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]+"

# Names that only ever hold a secret, whatever stands around them; `token` alone counts things in these logs.
_STRONG = (
    r"(?:x[-_])?api[-_ ]?keys?|access[-_]?keys?(?:[-_]?id)?|secret[-_]?(?:access[-_]?)?keys?|private[-_]?key"
    r"|account[-_]?key|client[-_]?secret|shared[-_]?secret|passw(?:or)?d|passphrase|connection[-_]?string"
    r"|(?:auth|access|refresh|session|security|bearer|hf|hub|api|github|gitlab|slack|bot|secret|registry|wandb|vault"
    r"|login|csrf|service[-_]?account|face)[-_]?token"
)
_QUOTES = r"""["'\\]*"""
_SEPARATOR = rf"{_QUOTES}\s*(?:[:=]>?|%3[aAdD])\s*"
_WRAPPED = r"[A-Za-z_.]*[\[({][^\])}\r\n]*[\])}]?"
# A quote that is itself escaped belongs to JSON inside JSON: there the first quote ends the value.
_QUOTED = r"""b?(?:\\+"[^"\r\n]*"?|\\+'[^'\r\n]*'?|"(?:[^"\\\r\n]|\\.)*"?|'(?:[^'\\\r\n]|\\.)*'?)"""
_BARE = r"""[^\s"',;&)}\]\x00\[(][^\s"',;&)}\]]*"""
_VALUE = rf"(?:{_WRAPPED}|{_QUOTED}|{_BARE})"
_AUTHORIZATION = rf"""\b(?:proxy-)?authorization(?:{_SEPARATOR}(?:b?["'\\]+)?|["'\\]+,\s*b?["'\\]+)"""
_NOT_IN_WORD = r"(^|[^A-Za-z0-9]|\\[nrt]|%[0-9A-Fa-f]{2}|\x1b\[[0-9;]*m)"
_WITH_DIGIT = r"[A-Za-z._~+/=-]*[0-9][A-Za-z0-9._~+/=-]*"

# A NUL in front of an empty value keeps the later rules off it: "api_key=None" tells that no key was set.
_GUARD = (
    rf"""(?i)((?:{_STRONG}|token|secret|credentials?){_SEPARATOR})(None|null|True|False|""|'')([\s,;)}}\]"'&]|$)""",
    "${1}\x00${2}${3}",
)

_RULES: tuple[tuple[str, str], ...] = (
    (r"(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\z)", MARK),
    # One line of a key that was printed over several: 49 characters or more, and not all hexadecimal as a checksum's.
    (r"(?m)^([ \t]*)[0-9A-Fa-f]{0,12}[G-Zg-z+/][A-Za-z0-9+/]{48,}={0,2}([ \t\r]*)$", f"${{1}}{MARK}${{2}}"),
    _GUARD,
    (rf"(?i)({_AUTHORIZATION}(?:digest|aws4-hmac-sha256)\s+)[^\r\n]*", f"${{1}}{MARK}"),
    (
        rf"""(?i)({_AUTHORIZATION}(?:(?:bearer|basic|token|negotiate|apikey)\s+)?)[^\s"',;}}\\\x00]+""",
        f"${{1}}{MARK}",
    ),
    (rf"(?i)\b((?:set-)?cookie{_SEPARATOR})(?:{_QUOTED}|[^\r\n\"'\x00]+)", f"${{1}}{MARK}"),
    (rf"(?i)\b(bearer(?:\s+|%20))(?:{_WITH_DIGIT}|[A-Za-z0-9._~+/=-]{{20,}})", f"${{1}}{MARK}"),
    (r"""(?i)([a-z][a-z0-9+.-]*://)[^\s/?#:@'"<>]*:[^\s/?#'"<>]*@""", f"${{1}}{MARK}@"),
    # A password with a slash in it; a first piece of digits alone would be a port.
    (
        r"""(?i)([a-z][a-z0-9+.-]*://)[^\s/?#:@'"<>\[]*:[^\s/?#'"<>]*[^\s/?#'"<>0-9][^\s/?#'"<>]*[/?#][^\s'"<>]*@""",
        f"${{1}}{MARK}@",
    ),
    (r"eyJ[A-Za-z0-9_-]{16,}(?:\.[A-Za-z0-9_-]*)*", MARK),
    (r"((?:AKIA|ASIA|AGPA|AIDA|AROA)[A-Z0-9]{12,})[\s:,'\"/=|]+[A-Za-z0-9/+]{40}", f"{MARK} {MARK}"),
    (r"(AKIA|ASIA|AGPA|AIDA|AROA)[A-Z0-9]{12,}", f"${{1}}{MARK}"),
    (
        r"(hf_|api_org_|gh[pousr]_|gsk_|r8_|npm_|dapi|tgp_v1_|[sr]k_(?:live|test)_|whsec_)[A-Za-z0-9]{16,}",
        f"${{1}}{MARK}",
    ),
    (
        r"(github_pat_|glpat-|gldt-|nvapi-|pypi-|dckr_pat_|ya29\.|xox[a-z]-|xapp-|AIza|hvs\.|SG\.)[A-Za-z0-9._-]{8,}",
        f"${{1}}{MARK}",
    ),
    (_NOT_IN_WORD + r"(sk-)(?:[A-Za-z_-]*[0-9][A-Za-z0-9_-]*|[A-Za-z0-9_-]{16,})", f"${{1}}${{2}}{MARK}"),
    (rf"(?i)((?:{_STRONG}){_SEPARATOR}){_VALUE}", f"${{1}}{MARK}"),
    (
        rf"(?i)(--(?:[a-z0-9]+[-_])*?(?:{_STRONG}|token|secret)(?:=|\s+|[\"'\\]+,\s*[\"'\\]+))[^\s\"',;\x00\[-][^\s\"',;]*",
        f"${{1}}{MARK}",
    ),
    (rf"(\b[A-Z][A-Z0-9_]*_(?:(?:TOKEN|KEY)\s*=|(?:SECRET|PASS|PWD)\s*[:=])\s*){_VALUE}", f"${{1}}{MARK}"),
    (rf"(?i)((?:secret|credentials?){_QUOTES}\s*=\s*){_VALUE}", f"${{1}}{MARK}"),
    (rf"""(?i)((?:secret|credentials?)["'\\]+\s*:\s*)(?:{_WRAPPED}|{_QUOTED})""", f"${{1}}{MARK}"),
    (
        r"(?i)([?&](?:x-amz-|x-goog-)?(?:signature|sig|security-token|credential|key|token|auth)=)[^\s&\"'<>#]+",
        f"${{1}}{MARK}",
    ),
    # A bare `token` needs a value that is no number and no special token before it is taken for a secret.
    (
        r"""(?i)((?:^|[^a-z0-9_#/-])token["'\\]*\s*(?:=|:\s*\\*["'])\s*\\*["']?)[0-9._+-]*[a-z][a-z0-9._~+/=-]{5,}""",
        f"${{1}}{MARK}",
    ),
)


def redacted(expr: pl.Expr) -> pl.Expr:
    """The strings of a column with every secret replaced by `[redacted]`; null stays null, NUL characters go."""
    expr = expr.str.replace_all("\x00", "", literal=True)
    for pattern, replacement in _RULES:
        expr = expr.str.replace_all(pattern, replacement)
    return expr.str.replace_all("\x00", "", literal=True)


def redact(text: str) -> str:
    """The text with every secret (key, token, header, password, private key) replaced by `[redacted]`."""
    found = pl.select(redacted(pl.lit(text, dtype=pl.String))).item()
    return str(found)


def visible(expr: pl.Expr) -> pl.Expr:
    """The strings of a column without what a reader cannot see; line ends and tabs stay, other controls are spaces."""
    return expr.str.replace_all(_GONE, "").str.replace_all(_CONTROL, " ")


def shown(expr: pl.Expr, most: int) -> pl.Expr:
    """The strings of a column as they may be shown: visible, without secrets, and cut to `most` characters."""
    clean = redacted(visible(expr))
    return pl.when(clean.str.len_chars() > most).then(clean.str.slice(0, most - 1) + "…").otherwise(clean)


def plain(text: str, most: int = MOST_CHARACTERS) -> str:
    """Log text as one line to show: visible, without secrets, its spaces single, cut to `most` characters."""
    clean = " ".join(redact(re.sub(_CONTROL, " ", re.sub(_GONE, "", text[:_READ]))).split())
    return clean if len(clean) <= most else clean[: most - 1] + "…"


_READ = 4000
"""Nothing longer is looked at where one line is shown."""
