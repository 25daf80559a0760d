"""POST and GET of Alertmanager's /api/v2/alerts, by its OpenAPI description and the rules of its types.

Labels are an alert's identity (empty ones are none); an alert without ``endsAt`` ends ``resolve_timeout_s`` after it
came; one that comes again is merged: the earlier start, the later explicit end unless it says that it is over.
"""

from __future__ import annotations

import http.server
import json
import re
import threading
import time
from dataclasses import dataclass, replace
from datetime import datetime, timezone

NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
KNOWN = {"labels", "annotations", "startsAt", "endsAt", "generatorURL"}


@dataclass(frozen=True)
class Held:
    """An alert as it is held."""

    labels: dict[str, str]
    annotations: dict[str, str]
    starts_s: float
    ends_s: float
    updated_s: float
    timeout: bool

    def resolved(self, now_s: float) -> bool:
        return self.ends_s <= now_s


def merged(old: Held, new: Held, now_s: float) -> Held:
    ends_s = new.ends_s
    if new.resolved(now_s):
        if old.resolved(now_s) and old.ends_s > ends_s:
            ends_s = old.ends_s
    elif old.ends_s > ends_s and not old.timeout:
        ends_s = old.ends_s
    return replace(new, starts_s=min(old.starts_s, new.starts_s), ends_s=ends_s)


class RefusedError(Exception):
    """What is answered by 400."""


class FakeAlertmanager:
    """``down`` : hangs up on everybody. ``status`` : answered instead, where it is not 0. ``posts`` : with times."""

    def __init__(self, port: int = 0, resolve_timeout_s: float = 300.0) -> None:
        self.resolve_timeout_s = resolve_timeout_s
        self.held: dict[tuple[tuple[str, str], ...], Held] = {}
        self.posts: list[tuple[float, dict]] = []
        self.down, self.status, self.wait_s = False, 0, 0.0
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                time.sleep(fake.wait_s)
                if fake.down:
                    self.connection.close()
                    return
                status, text = fake.status, b"told to"
                if not status:
                    try:
                        if (self.path, self.headers["Content-Type"]) != ("/api/v2/alerts", "application/json"):
                            raise RefusedError(f"{self.path} {self.headers['Content-Type']}")
                        fake.take(json.loads(body), time.time())
                        status, text = 200, b""
                    except (RefusedError, ValueError) as error:
                        status, text = 400, json.dumps(str(error)).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None: ...

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None: ...

        self._server = Server(("127.0.0.1", port), Handler)
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def take(self, alerts: list[dict], now_s: float) -> None:
        for posted in alerts:
            self.posts.append((now_s, posted))
            if set(posted) - KNOWN or "labels" not in posted:
                raise RefusedError(f"unknown or missing properties: {sorted(posted)}")
            labels = {name: value for name, value in posted["labels"].items() if value}
            texts = [*labels.items(), *posted.get("annotations", {}).items()]
            if not labels or any(not NAME.fullmatch(name) or not isinstance(value, str) for name, value in texts):
                raise RefusedError("at least one label pair required, and names and texts")
            ends_s, starts_s = seconds(posted.get("endsAt")), seconds(posted.get("startsAt"))
            if starts_s is None:
                starts_s = now_s if ends_s is None else ends_s
            timeout = ends_s is None
            if ends_s is None:
                ends_s = now_s + self.resolve_timeout_s
            if ends_s < starts_s:
                raise RefusedError("start time must be before end time")
            new = Held(labels, posted.get("annotations", {}), starts_s, ends_s, now_s, timeout)
            key = tuple(sorted(labels.items()))
            old = self.held.get(key)
            overlap = old is not None and (
                old.starts_s < new.ends_s < old.ends_s or old.starts_s < new.starts_s < old.ends_s
            )
            self.held[key] = merged(old, new, now_s) if overlap else new

    def active(self) -> list[Held]:
        """Return the alerts that have not ended."""
        now_s = time.time()
        return [one for one in list(self.held.values()) if not one.resolved(now_s)]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def seconds(stamp: str | None) -> float | None:
    if stamp is None:
        return None
    at = datetime.fromisoformat(stamp.replace("Z", "+00:00"))
    if at.tzinfo is None:
        raise RefusedError(f"no date-time: {stamp}")
    return at.astimezone(timezone.utc).timestamp()
