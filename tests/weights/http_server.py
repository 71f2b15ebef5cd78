"""A web server on this machine that breaks in the ways in which servers break."""

import contextlib
import http.server
import random
import re
import threading
import time


class Answer:
    """How one request is answered.

    Args:
        stop: How many bytes of the body to send before the connection is cut; None sends all.
        stall: Seconds of silence before the connection is cut.
        status: Status to answer with.
        length: Content-Length to announce; None announces the right one, False none.
        body: Bytes to send in place of the server's own.
        ranges: Whether to answer a Range request by a part, True, or by the whole.
        shift: How far beside the part that was asked for to start.
        headers: Further headers.
        pause: Seconds to wait after each 4 KiB.
    """

    def __init__(
        self, stop=None, stall=0, status=200, length=None, body=None, ranges=True, shift=0, headers=(), pause=0
    ):
        self.stop, self.stall, self.status, self.length, self.body = stop, stall, status, length, body
        self.ranges, self.shift, self.headers, self.pause = ranges, shift, dict(headers), pause

    def __call__(self, handler):
        server = handler.server
        body, status = server.body if self.body is None else self.body, self.status
        headers = {"ETag": server.etag, "Content-Type": "application/octet-stream", **self.headers}
        start = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
        if start and self.ranges and status == 200 and handler.headers.get("If-Range") in (None, server.etag):
            start = int(start[1]) + self.shift
            status, headers["Content-Range"] = 206, f"bytes {start}-{len(body) - 1}/{len(body)}"
            body = body[start:]
        if self.length is not False:
            headers["Content-Length"] = len(body) if self.length is None else self.length
        handler.send_response(status)
        for name, value in headers.items():
            if value is not None:
                handler.send_header(name, value)
        handler.end_headers()
        body = body if self.stop is None else body[: self.stop]
        for at in range(0, len(body), 4096):
            handler.wfile.write(body[at : at + 4096])
            server.sent += len(body[at : at + 4096])
            time.sleep(self.pause)
        handler.wfile.flush()
        time.sleep(self.stall)


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append(dict(self.headers))
        answers = self.server.answers
        # The client may have gone by now, which is what some tests are about.
        with contextlib.suppress(ConnectionError):
            (answers.pop(0) if len(answers) > 1 else answers[0])(self)
        self.close_connection = True

    def log_message(self, *arguments):
        pass


class Server(http.server.ThreadingHTTPServer):
    """Serves `body` at `url`, each request by the next of `answers` and all further ones by the last of them."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/folder/weights.npz"
        self.body = random.Random(0).randbytes(200_000)
        self.etag = '"1"'
        self.answers, self.requests, self.sent = [Answer()], [], 0


@contextlib.contextmanager
def running():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
