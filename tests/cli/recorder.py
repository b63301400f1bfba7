"""An HTTP server that records requests, and gives the answers that a test chooses."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["Received", "Recorder", "closed_port_url", "recording"]


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it arrived."""

    path: str
    headers: dict[bytes, bytes]
    body: bytes


@dataclass
class Recorder:
    """The recorded requests, and the answers to give; the last answer is repeated."""

    url: str
    requests: list[Received] = field(default_factory=list)
    statuses: list[int] = field(default_factory=lambda: [200])
    answer: bytes = b'{"status": "accepted", "reason": "handled"}'

    def next_status(self) -> int:
        return self.statuses[0] if len(self.statuses) == 1 else self.statuses.pop(0)


class _Server(ThreadingHTTPServer):
    # With the default backlog of 5, the connections of a flood would wait up to 15 s for a retry.
    request_queue_size = 1024


@contextmanager
def recording(port: int = 0) -> Iterator[Recorder]:
    """Serve on a loopback port, by default a free one, until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            headers = {  # http.client decodes header values as latin-1
                name.lower().encode("latin-1"): value.encode("latin-1")
                for name, value in self.headers.items()
            }
            recorder.requests.append(Received(self.path, headers, body))
            self.send_response(recorder.next_status())
            self.send_header("content-length", str(len(recorder.answer)))
            self.end_headers()
            self.wfile.write(recorder.answer)

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class has this parameter name
            pass

    with _Server(("127.0.0.1", port), Handler) as server:
        recorder = Recorder(f"http://127.0.0.1:{server.server_port}/hooks")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield recorder
        finally:
            server.shutdown()
            thread.join()


def closed_port_url() -> str:
    """Return a URL at which no server listens."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        return f"http://127.0.0.1:{server.server_port}/hooks"
