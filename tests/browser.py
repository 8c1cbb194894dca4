"""JupyterLab on this machine, seen by a headless Chromium: what tests and benchmarks of the explorer share."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import nbformat

from sortlib.notebooks import FOLDER

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
LOCAL = ("localhost", "127.0.0.1")


def chromium() -> str | None:
    """Path of an installed browser."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def copy_notebook(name, folder: Path, **parameters):
    """A notebook of the repository with other parameters, without outputs; the file is named as it was."""
    book = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    (cell,) = [cell for cell in book.cells if "parameters" in cell.metadata.get("tags", [])]
    cell.source = "\n".join([cell.source, *(f"{key} = {value!r}" for key, value in parameters.items())])
    nbformat.write(book, folder / f"{name}.ipynb")


@contextlib.contextmanager
def jupyterlab(root: Path, home: Path, theme="JupyterLab Light"):
    """A server on localhost with a token; yields a function that makes the address of a notebook below ``root``.

    ``home`` takes the server's settings, so that those of the user neither matter nor change.
    """
    settings = {
        "apputils-extension/themes": {"theme": theme},
        "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
        "notebook-extension/tracker": {"windowingMode": "none"},  # else only cells in sight are in the page
    }
    for name, values in settings.items():
        file = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(16)
    environment = {
        **os.environ, "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"), "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"), "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "IPYTHONDIR": str(home / "ipython"),
    }  # fmt: skip
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--allow-root",
        f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={root}", "--LabApp.extension_manager=readonly",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]  # fmt: skip
    base = f"http://127.0.0.1:{port}"
    with open(home / "server.log", "w") as log:
        server = subprocess.Popen(command, env=environment, cwd=root, stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait_for(f"{base}/api/status?token={token}", server, home / "server.log")
            yield lambda name: f"{base}/lab/tree/{name}.ipynb?token={token}"
        finally:
            server.terminate()  # the server ends its kernels
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()


def _wait_for(address, server, log):
    for _ in range(300):
        if server.poll() is not None:
            break
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5):
            return
        time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-2000:]}")


class Watched:
    """A browser page with a record of what must not happen on it.

    Attributes
    ----------
    errors : console errors and uncaught exceptions.
    outside : addresses requested from anywhere but this machine.
    """

    def __init__(self, page):
        self.page, self.errors, self.outside = page, [], []
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self._requested(request.url))
        page.on("websocket", lambda socket: self._requested(socket.url))

    def _requested(self, address):
        parts = urlsplit(address)
        if parts.scheme not in ("data", "blob", "about") and parts.hostname not in LOCAL:
            self.outside.append(address)

    def run_notebook(self, address, timeout=120):
        """Open a notebook and run all its cells from the menu; wait until the kernel is idle again.

        Returns what was written to standard error, tracebacks included.
        """
        page, milliseconds = self.page, timeout * 1000
        page.goto(address)
        page.locator(".jp-Notebook .jp-CodeCell").first.wait_for(timeout=milliseconds)
        page.locator("#jp-main-statusbar", has_text="| Idle").wait_for(timeout=milliseconds)  # or Lab asks for a kernel
        page.locator(".lm-MenuBar-itemLabel", has_text="Run").click()
        page.locator(".lm-Menu-itemLabel", has_text="Run All Cells").first.click()
        # A cell that waits or runs has a star as its prompt; the last one is numbered when all are done.
        page.wait_for_function(
            """() => {
                const cells = [...document.querySelectorAll(".jp-Notebook .jp-CodeCell")];
                const prompts = cells.map((cell) => cell.querySelector(".jp-InputPrompt").textContent);
                const done = prompts.length && prompts.every((text) => /\\[\\d+\\]/.test(text));
                return done || document.querySelector(".jp-Notebook [data-mime-type$=stderr]");
            }""",
            timeout=milliseconds,
        )
        return page.locator(".jp-Notebook [data-mime-type$=stderr]").all_inner_texts()


@contextlib.contextmanager
def browser(width=1400, height=1000):
    """A headless Chromium; yields a function that opens a ``Watched`` page."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chrome = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        context = chrome.new_context(viewport={"width": width, "height": height})
        try:
            yield lambda: Watched(context.new_page())
        finally:
            chrome.close()
