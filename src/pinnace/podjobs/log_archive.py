"""A kubelet's port for nodes that have ended: serves what their pods said, from the cluster's directory.

The API server asks a pod's node for its logs. The object of an ended node leads here, to the head (see
``podjobs.reconciler``), for as long as pods of it are there.
"""

from __future__ import annotations

import datetime as dt
import ssl
from collections import deque
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from pinnace.controlplane import one_client
from pinnace.podjobs.reconciler import ARCHIVE_PORT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pinnace.spec import NodeSpec

API_SERVER = "kube-apiserver-kubelet-client"


class Line(NamedTuple):
    """A line as the container runtime writes it: when, which stream, whether it is whole, what."""

    time: str
    stream: str
    whole: bool
    text: bytes


def parse_line(raw: bytes) -> Line | None:
    time, _, rest = raw.rstrip(b"\n").partition(b" ")
    stream, _, rest = rest.partition(b" ")
    tags, _, text = rest.partition(b" ")
    if stream not in {b"stdout", b"stderr"}:
        return None
    return Line(time.decode(errors="replace"), stream.decode(), tags.split(b":")[0] == b"F", text)


def instant(text: str) -> dt.datetime:
    """A time of RFC 3339; nanoseconds are cut."""
    date, dot, rest = text.partition(".")
    digits = "".join(character for character in rest if character.isdigit()) if dot else ""
    if dot:
        tail = rest[len(rest) - len(rest.lstrip("0123456789")) :]
        text = f"{date}.{digits[:6]}{tail}"
    return dt.datetime.fromisoformat(text)


def select(
    lines: Iterable[Line],
    *,
    tail: int | None = None,
    since: dt.datetime | None = None,
    timestamps: bool = False,
    limit: int | None = None,
    stream: str = "",
) -> Iterator[bytes]:
    """What of a log is asked for, as text. An unfinished line counts with what follows it."""
    wanted = (
        line
        for line in lines
        if (since is None or instant(line.time) >= since) and (not stream or line.stream == stream)
    )
    groups: Iterable[list[Line]] = _whole(wanted)
    if tail is not None:
        groups = deque(groups, maxlen=tail) if tail else ()
    left = limit
    for group in groups:
        text = b"".join(line.text for line in group) + (b"\n" if group[-1].whole else b"")
        if timestamps:
            text = f"{group[0].time} ".encode() + text
        if left is not None:
            text = text[:left]
            left -= len(text)
        if text:
            yield text


def _whole(lines: Iterable[Line]) -> Iterator[list[Line]]:
    group: list[Line] = []
    for line in lines:
        group.append(line)
        if line.whole:
            yield group
            group = []
    if group:
        yield group


def find(directory: Path, namespace: str, pod: str, container: str, *, previous: bool) -> Path | None:
    """The log of a container: of its last run, or the one before. Names of pods come again; the youngest counts."""
    if any("/" in part or part.startswith(".") or not part for part in (namespace, pod, container)):
        return None
    places = [place for place in directory.glob(f"*/{namespace}_{pod}_*/{container}") if place.is_dir()]
    if not places:
        return None
    place = max(places, key=lambda path: path.stat().st_mtime)
    runs = sorted((path for path in place.glob("*.log") if path.stem.isdigit()), key=lambda path: int(path.stem))
    position = -2 if previous else -1
    return runs[position] if len(runs) >= -position else None


class LogHandler(BaseHTTPRequestHandler):
    """Answers the API server, and nobody else."""

    directory: Path
    timeout = 30

    def do_GET(self) -> None:
        if not isinstance(self.connection, ssl.SSLSocket) or one_client.common_name(self.connection) != API_SERVER:
            self.send_error(HTTPStatus.FORBIDDEN)
            return
        address = urlsplit(self.path)
        parts = [unquote(part) for part in address.path.strip("/").split("/")]
        if len(parts) != 4 or parts[0] != "containerLogs":
            self.send_error(HTTPStatus.NOT_FOUND, "the pod's node has ended; only its logs are left")
            return
        asked = {name: values[-1] for name, values in parse_qs(address.query).items()}
        log = find(self.directory, parts[1], parts[2], parts[3], previous=asked.get("previous") == "true")
        if log is None:
            self.send_error(HTTPStatus.NOT_FOUND, "there is no such log")
            return
        self._send(log, asked)

    def _send(self, log: Path, asked: dict[str, str]) -> None:
        since = None
        if "sinceSeconds" in asked:
            since = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=int(asked["sinceSeconds"]))
        elif "sinceTime" in asked:
            since = instant(asked["sinceTime"])
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        with log.open("rb") as file:
            lines = (line for line in map(parse_line, file) if line)
            for text in select(
                lines,
                tail=int(asked["tailLines"]) if "tailLines" in asked else None,
                since=since,
                timestamps=asked.get("timestamps") == "true",
                limit=int(asked["limitBytes"]) if "limitBytes" in asked else None,
                stream=asked["stream"].lower() if asked.get("stream", "All") != "All" else "",
            ):
                self.wfile.write(text)

    def log_message(self, *_args: object) -> None:
        pass


def serve(node: NodeSpec) -> None:
    LogHandler.directory = node.cluster.directory / "pods"
    one_client.serve(LogHandler, node, ARCHIVE_PORT)
