"""A server of files on this machine, which can break off, refuse or know no ranges."""

from __future__ import annotations

import hashlib
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ampkit.data.download import Source


class Server(ThreadingHTTPServer):
    """Serves `files` by name.

    break_after: bytes after which it hangs up; ranges: whether it knows them; status: an error that it answers instead,
    refused_ranges: where it was asked for a range; drip: "head" or "content", of which it sends a byte now and then;
    asked: the ranges it was asked for.
    """

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.files, self.sources = {}, {}
        self.break_after, self.ranges, self.status, self.asked = None, True, None, []
        self.refused_ranges, self.drip = None, None

    def source(self, name):
        """The source of a file as it was when first asked."""
        content = self.files[name]
        url = f"http://127.0.0.1:{self.server_port}/files/{name}"
        return self.sources.setdefault(name, Source(url, len(content), hashlib.sha256(content).hexdigest()))


class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        server, asked = self.server, self.headers.get("Range")
        server.asked.append(asked)
        status = server.refused_ranges if asked and server.refused_ranges else server.status
        if status is not None:
            self.send_error(status)
            return
        if server.drip == "head":
            self.trickle(b"HTTP/1.1 200 OK\r\nServer: slow")
            return
        content = server.files[self.path.rpartition("/")[2]]
        first = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and server.ranges else 0
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - first))
        self.end_headers()
        if server.drip == "content":
            self.trickle(content)
            return
        self.wfile.write(content[first:][: server.break_after])

    def trickle(self, content):
        with suppress(ConnectionError):
            for i in range(len(content)):
                self.wfile.write(content[i : i + 1])
                time.sleep(0.01)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    made = Server()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()
