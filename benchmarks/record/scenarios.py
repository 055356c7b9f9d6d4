"""The recorded scenarios as data: how a server is started and what is asked of it."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Mix:
    """One kind of request, lengths drawn evenly from closed ranges (tokens).

    ``shared_prefix`` is the number of leading prompt tokens that all requests
    of this kind have in common, so that a prefix cache finds something.
    """

    weight: float
    prompt: tuple[int, int]
    output: tuple[int, int]
    shared_prefix: int = 0


@dataclass(frozen=True)
class Workload:
    """Requests and their arrivals.

    With ``burst_size`` 0 the arrivals are Poisson at ``rate`` requests per
    second.  Otherwise bursts of ``burst_size`` start every ``burst_every``
    seconds, and ``rate`` holds within a burst.  With ``one_by_one`` each
    request is sent when the one before has ended, and ``rate`` is not used.
    A share ``may_stop`` of the requests may end at the model's end-of-text
    token; the others always use up their output length.
    """

    count: int
    rate: float
    mixes: tuple[Mix, ...]
    burst_size: int = 0
    burst_every: float = 0.0
    may_stop: float = 0.15
    one_by_one: bool = False


@dataclass(frozen=True)
class Start:
    """One start of the server: its own arguments, its load and its end.

    ``kill_on`` is a piece of log text; the server is killed (SIGKILL)
    ``kill_delay`` seconds after it appears, and no load is sent.  ``cold``
    empties the compile caches before the start and asks the kernel to drop the
    model's and the interpreter's files from its page cache.  ``log`` is the
    file to which the server's output is appended.
    """

    workload: Workload | None
    args: tuple[str, ...] = ()
    stop_signal: str = "SIGINT"
    kill_on: str = ""
    kill_delay: float = 0.0
    cold: bool = False
    log: str = "server.log"


@dataclass(frozen=True)
class Scenario:
    """A folder of recordings: server arguments, starts, and a sentence on what it shows.

    ``keeps`` names the server's files that are published; the metrics are scraped every ``scrape_every`` seconds.
    ``settle`` quiet seconds lie before each stop, where it is not None.  With ``compact`` the server's files are
    compressed, and the client's times are published on the log's clock as well, a table beside each log.  With
    ``steady`` the model computes with one thread that has a core of its own, so that its steps are even.
    """

    name: str
    shows: str
    args: tuple[str, ...]
    starts: tuple[Start, ...]
    seed: int = 0
    keeps: tuple[str, ...] = ("server.log", "metrics.prom.txt")
    scrape_every: float = 5.0
    settle: float | None = None
    compact: bool = False
    steady: bool = False


CHAT = Mix(weight=0.6, prompt=(20, 120), output=(20, 100))
DOCUMENT = Mix(weight=0.4, prompt=(150, 500), output=(40, 160))
SMALL_POOL = ("--num-gpu-blocks-override", "14")  # 14 blocks of 128 tokens, one of them kept back
EAGER = ("--enforce-eager",)
ONE_BY_ONE = Workload(32, 1.0, (Mix(1.0, (64, 64), (4, 4)),), may_stop=0.0, one_by_one=True)
COLD_START = Start(ONE_BY_ONE, cold=True, log="cold.log")
WARM_START = Start(ONE_BY_ONE, log="warm.log")
ITERATIONS = ("--enable-logging-iteration-details", "--enable-log-requests")

SCENARIOS = (
    Scenario(
        name="plain",
        shows="moderate Poisson load well within the limits, with iteration and request lines",
        args=(*EAGER, "--max-num-seqs", "8", *ITERATIONS),
        starts=(Start(Workload(60, 0.9, (CHAT, DOCUMENT))),),
        seed=11,
    ),
    Scenario(
        name="sequence_limit",
        shows="a queue that grows behind a low sequence limit while the KV cache stays nearly empty",
        args=(*EAGER, "--max-num-seqs", "2", "--enable-log-requests"),
        starts=(
            Start(
                Workload(70, 2.0, (Mix(0.7, (20, 120), (20, 80)), Mix(0.3, (150, 400), (40, 120)))),
                stop_signal="SIGTERM",
            ),
        ),
        seed=12,
    ),
    Scenario(
        name="kv_preempts",
        shows="a KV cache so small that running requests are preempted and computed again",
        args=(*EAGER, "--max-num-seqs", "12", *SMALL_POOL, *ITERATIONS),
        starts=(Start(Workload(48, 1.2, (Mix(1.0, (60, 220), (120, 300)),))),),
        seed=13,
    ),
    Scenario(
        name="long_short_bursts",
        shows="short chats and long prompts together, in bursts with quiet time between them",
        args=(*EAGER, "--max-num-seqs", "8", *ITERATIONS),
        starts=(
            Start(
                Workload(
                    64,
                    8.0,
                    (
                        Mix(0.7, (15, 40), (5, 60)),
                        Mix(0.3, (700, 850), (60, 300), shared_prefix=256),
                    ),
                    burst_size=16,
                    burst_every=30.0,
                ),
                stop_signal="SIGTERM",
            ),
        ),
        seed=14,
    ),
    Scenario(
        name="two_starts",
        shows="a start that compiles, then one that finds the compile cache, in one log file",
        args=("--max-num-seqs", "4"),  # no eager mode, so that it compiles
        starts=(
            Start(Workload(20, 1.5, (CHAT,))),
            Start(Workload(20, 1.5, (CHAT,)), stop_signal="SIGTERM"),
        ),
        seed=15,
    ),
    Scenario(
        name="killed_mid_load",
        shows="a start killed (SIGKILL) after the engine began to set up: no ready line, no shutdown",
        args=(*EAGER, "--max-num-seqs", "8"),
        starts=(Start(None, kill_on="Initializing a V1 LLM engine", kill_delay=4.0),),
        seed=16,
    ),
    Scenario(
        name="starts_cold_warm",
        shows="seven starts with empty caches, each followed by one with filled caches, and a first request in each",
        args=("--max-num-seqs", "4", "--enable-log-requests"),
        starts=(COLD_START, WARM_START) * 7,
        seed=17,
        keeps=("cold.log", "warm.log"),
        scrape_every=3600.0,
        settle=1.0,
        compact=True,
    ),
)

STEADY = {"keeps": ("server.log",), "scrape_every": 3600.0, "settle": 3.0, "compact": True, "steady": True}
SCENARIOS += tuple(
    replace(
        scenario,
        name=f"steady_{scenario.name}",
        shows=f"the load of {scenario.name} on one thread with a core of its own, at the highest priority: even steps",
        **STEADY,
    )
    for scenario in SCENARIOS
    if scenario.name in ("plain", "kv_preempts", "long_short_bursts")
)


def by_name(name: str) -> Scenario:
    """Return the scenario called ``name``; an unknown name lists those that exist."""
    for scenario in SCENARIOS:
        if scenario.name == name:
            return scenario
    known = ", ".join(scenario.name for scenario in SCENARIOS)
    raise SystemExit(f"no scenario {name!r}; there are: {known}")
