"""A real JupyterLab on loopback and a real Chromium; both are left as they were found."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).parents[2]
ARTEFACTS = ROOT / "artefacts"
START_LIMIT_S = 120
LOCAL = ("http://127.0.0.1", "ws://127.0.0.1", "data:", "blob:", "file:", "about:")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@dataclass
class Watch:
    """What a page did beside showing itself."""

    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def follow(self, page: Page) -> None:
        """Note every request, and every error on the console or uncaught."""
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("websocket", lambda socket: self.requests.append(socket.url))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda line: self.complaints.append(line.text) if line.type == "error" else None)

    @property
    def outside(self) -> list[str]:
        """Requests that would leave this machine."""
        return [url for url in self.requests if not url.startswith(LOCAL)]


def chromium() -> str | None:
    """The browser's path, if there is one."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium without a window; its absence is a failure in CI and a skip elsewhere.

    One a module, because Playwright holds the thread's event loop as long as it runs and other tests want one too.
    """
    path = chromium()
    if path is None:
        reason = "no Chromium here; on Debian: apt install chromium, elsewhere set CHROMIUM to its path"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    ARTEFACTS.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield running
        running.close()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the first notebook in a JupyterLab that serves a copy of the notebooks, behind a token."""
    home = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "notebooks", home / "notebooks")
    settings = home / "settings" / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
    settings.parent.mkdir(parents=True)
    settings.write_text('{"fetchNews": "false", "checkForUpdates": false}')
    folders = {f"JUPYTER_{name}_DIR": str(home / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")}
    folders |= {"IPYTHONDIR": str(home / "ipython"), "JUPYTERLAB_SETTINGS_DIR": str(home / "settings")}
    token = secrets.token_hex(16)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--expose-app-in-browser"]
    command += [f"--notebook-dir={home}", "--ServerApp.ip=127.0.0.1", "--ServerApp.port=0"]
    with (home / "lab.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | folders | {"JUPYTER_TOKEN": token})
        try:
            yield f"{_address(home, server, token)}lab/tree/notebooks/00_start_here.ipynb?token={token}"
        finally:
            server.terminate()
            server.wait(timeout=30)


def _address(home: Path, server: subprocess.Popen[bytes], token: str) -> str:
    until = time.monotonic() + START_LIMIT_S
    while time.monotonic() < until and server.poll() is None:
        for file in (home / "runtime").glob("jpserver-*.json"):
            with contextlib.suppress(OSError, ValueError):
                url = str(json.loads(file.read_text())["url"])
                with urllib.request.urlopen(f"{url}api/status?token={token}", timeout=5):
                    return url
        time.sleep(0.2)
    pytest.fail(f"JupyterLab did not start: {(home / 'lab.log').read_text()[-2000:]}")


@pytest.fixture
def watch() -> Watch:
    """An empty record of what a page does."""
    return Watch()
