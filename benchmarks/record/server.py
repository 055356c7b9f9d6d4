"""Start, watch and stop one vLLM server process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

SERVED_NAME = "tiny-llama"
MODULE = "vllm.entrypoints.openai.api_server"
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "2",
}
ONE_CORE = {"VLLM_CPU_OMP_THREADS_BIND": "1", "OMP_NUM_THREADS": "1"}


def free_port() -> int:
    """Return a TCP port on the loopback interface that is free right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def favour(pid: int, nice: int) -> None:
    """Give a process its priority; Linux schedules sessions as groups, whose priority is another file."""
    os.setpriority(os.PRIO_PROCESS, pid, nice)
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))


@dataclass
class Server:
    """A server process whose output is appended to ``log``."""

    python: str
    model: Path
    cache: Path
    log: Path
    args: tuple[str, ...]
    max_model_len: int = 1024
    nice: int = 0
    steady: bool = False
    port: int = field(default_factory=free_port)
    process: subprocess.Popen | None = None
    launched_at: float = 0.0
    log_start: int = 0

    @property
    def url(self) -> str:
        """Base address of the server."""
        return f"http://127.0.0.1:{self.port}"

    def environment(self) -> dict[str, str]:
        """Return the variables that are set on top of the inherited ones."""
        return {
            **ENVIRONMENT,
            **(ONE_CORE if self.steady else {}),
            "VLLM_CACHE_ROOT": str(self.cache),
            "TORCHINDUCTOR_CACHE_DIR": str(self.cache / "inductor"),
        }

    def command(self) -> list[str]:
        """Return the command line as it is executed."""
        return [
            self.python, "-m", MODULE,
            "--model", str(self.model), "--served-model-name", SERVED_NAME,
            "--host", "127.0.0.1", "--port", str(self.port),
            "--max-model-len", str(self.max_model_len), "--dtype", "bfloat16",
            *self.args,
        ]  # fmt: skip

    def launch(self) -> None:
        """Start the process in a session of its own, output appended to the log."""
        self.log_start = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as sink:
            self.launched_at = time.time()
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                cwd=self.log.parent,
                env={**os.environ, **self.environment()},
                start_new_session=True,
            )
        if self.nice:
            favour(self.process.pid, self.nice)

    def log_has(self, text: str) -> bool:
        """Tell whether this start has logged ``text`` yet."""
        with self.log.open("rb") as source:
            source.seek(self.log_start)
            return text.encode() in source.read()

    async def wait_for_text(self, text: str, timeout: float) -> None:
        """Return once this start has logged ``text``."""
        await self._poll(lambda: self.log_has(text), timeout)

    async def wait_ready(self, session, timeout: float) -> float:
        """Return the seconds from launch to the first good answer of ``/health``."""
        import aiohttp

        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            self._check_alive()
            try:
                async with session.get(f"{self.url}/health") as answer:
                    if answer.status == 200:
                        return time.time() - self.launched_at
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.2)
        raise TimeoutError(f"not ready after {timeout} s, see {self.log}")

    def stop(self, name: str, timeout: float = 60.0) -> float:
        """Send signal ``name`` to the server and return the seconds until it is gone."""
        if self.process is None or self.process.poll() is not None:
            return 0.0
        begun = time.monotonic()
        self.process.send_signal(getattr(signal, name))
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
        return time.monotonic() - begun

    def kill(self) -> None:
        """Kill the server and every process it has started."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _check_alive(self) -> None:
        if self.process is None or self.process.poll() is not None:
            raise RuntimeError(f"the server has ended, see {self.log}")

    async def _poll(self, condition, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            self._check_alive()
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing after {timeout} s, see {self.log}")
            await asyncio.sleep(0.2)
