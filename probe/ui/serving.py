"""From a page that is built to one that answers, on a machine that may be slow, busy or behind a proxy."""

from __future__ import annotations

import os
import threading
from typing import Any
from urllib.request import getproxies

import gradio as gr

import probe
from probe.ui import endpoints, limits
from probe.ui.screen import look
from probe.ui.state import DEFAULT_HEADS, Session
from probe.ui.theme import head, theme


def start(demo: gr.Blocks) -> None:
    """Answer first, then load the models; returns when the server is ended.

    Raises
    ------
    ProbeError
        If there is no port to answer on, or what was asked for by environment variables can't be had.
    """
    options = launch_options()
    around_proxies()
    try:
        demo.queue(max_size=64).launch(prevent_thread_lock=True, **options)
    except OSError as error:  # no free port, or no such address
        raise probe.ProbeError(f"The page finds no place to answer: {error}") from None
    threading.Thread(target=warm_up, daemon=True).start()
    demo.block_thread()


def launch_options() -> dict[str, Any]:
    """What ``Blocks.launch`` must be given for the page to look and work as meant.

    Gradio keeps 0.6 MB for each visitor until it forgets the one who has been away longest; the results that
    are kept are bounded too (``store.KEPT_BYTES``).

    Raises
    ------
    ProbeError
        If an MCP server is asked for and can't be had.
    """
    limits.bound_heaps()
    return {
        "theme": theme(),
        "head": head(),
        "footer_links": ["api", "settings"],
        "run_history": False,
        "state_session_capacity": 500,
        "max_file_size": "1mb",
        "mcp_server": endpoints.asked_for_mcp(),
        # Gradio would ask its own page for an answer within 3 s, and end where a busy machine takes longer.
        "_frontend": False,
    }


def around_proxies() -> None:
    """Where a proxy is set, have this process ask its own page directly, which Gradio does at the start."""
    proxies = getproxies()
    if not {"http", "all"} & proxies.keys():
        return
    own = ["localhost", "127.0.0.1", "::1", os.environ.get("GRADIO_SERVER_NAME")]
    direct = ",".join(one for one in (proxies.get("no"), *own) if one)
    for name in ("NO_PROXY", "no_proxy"):  # where both are set, some look at one and some at the other
        os.environ[name] = direct


def warm_up() -> None:
    """Load the default models and compute the first view, so that the first visitor need not wait for it."""
    for slot, place in enumerate(DEFAULT_HEADS):
        look(Session(), slot, *place, None)
