"""Local servers: one of a file, which fails as servers fail, and one with the tested protocols of two hubs."""

import base64
import contextlib
import dataclasses
import hashlib
import http.server
import json
import random
import re
import threading
from urllib.parse import unquote, urlsplit

LARGE = (".npz", ".safetensors", ".bin", ".h5", ".keras")


class _Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@contextlib.contextmanager
def running(kind):
    """Starts a server of a kind, and stops it at the end."""
    with kind() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@dataclasses.dataclass
class Answer:
    """How one request is answered."""

    stop: int | None = None  # Bytes of the body before the connection is cut; None sends all.
    status: int = 200
    announced: bool = True  # If True, the header states the length of the body.
    body: bytes | None = None  # Replaces the body of the server.

    def __call__(self, handler):
        body = handler.server.body if self.body is None else self.body
        handler.send_response(self.status)
        handler.send_header("Content-Type", "application/octet-stream")
        if self.announced:
            handler.send_header("Content-Length", len(body))
        handler.end_headers()
        handler.wfile.write(body[: self.stop])


class _FileHandler(_Handler):
    def do_GET(self):
        self.server.requests.append(self.path)
        answers = self.server.answers
        # Some clients close the connection early.
        with contextlib.suppress(ConnectionError):
            (answers.pop(0) if len(answers) > 1 else answers[0])(self)
        self.close_connection = True


class Server(http.server.ThreadingHTTPServer):
    """Serves `body` at `url`. Each request gets the next of `answers`; the last answer repeats."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _FileHandler)
        self.url = f"http://127.0.0.1:{self.server_port}/folder/weights.npz"
        self.body = random.Random(0).randbytes(200_000)
        self.answers, self.requests = [Answer()], []


def git_hash(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class _HubHandler(_Handler):
    def _handle(self):
        path = unquote(urlsplit(self.path).path)
        hub = self.server
        hub.requests.append(f"{self.command} {path}")
        hub.tokens.append(self.headers.get("Authorization"))
        body = self._body()
        try:
            for pattern, status, code in hub.refusals:
                if re.match(pattern, f"{self.command} {path}"):
                    return self._send(status, {"X-Error-Code": code} if code else {}, b"{}")
            for method, pattern, answer in _ROUTES:
                if method == self.command.replace("HEAD", "GET") and (found := re.fullmatch(pattern, path)):
                    return answer(self, hub, body, **found.groupdict())
            self._send(404, {}, b"{}")
        except KeyError as error:
            self._send(404, {"X-Error-Code": error.args[0]}, b"{}")

    do_GET = do_HEAD = do_POST = do_PUT = _handle

    def _body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _send(self, status, headers, body=b"", stop=None):
        self.send_response(status)
        for name, value in ({"Content-Length": len(body)} | headers).items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:stop])

    def _json(self, content):
        self._send(200, {"Content-Type": "application/json"}, json.dumps(content).encode())

    def _info(self, hub, body, repo, revision="main"):
        commit = hub.commit(repo, revision)
        self._json({"id": repo, "sha": commit, "siblings": [{"rfilename": path} for path in hub.commits[commit]]})

    def _tree(self, hub, body, repo, revision):
        files = hub.commits[hub.commit(repo, revision)]
        tree = [{"type": "file", "path": path, "size": len(x), "oid": git_hash(x)} for path, x in files.items()]
        self._json([f | ({"lfs": hub.pointer(files[f["path"]])} if f["path"].endswith(LARGE) else {}) for f in tree])

    def _file(self, hub, body, repo, revision, path):
        commit = hub.commit(repo, revision)
        if path not in hub.commits[commit]:
            raise KeyError("EntryNotFound")
        content = hub.commits[commit][path]
        status, headers, stop = 200, {"X-Repo-Commit": commit, "ETag": f'"{git_hash(content)}"'}, None
        if path.endswith(LARGE):
            headers |= {"X-Linked-ETag": f'"{hub.pointer(content)["oid"]}"', "X-Linked-Size": len(content)}
            stop = hub.cuts.pop(0) if hub.cuts and self.command == "GET" else None
        if start := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")):
            hub.ranges.append(int(start[1]))
            status, headers["Content-Range"] = 206, f"bytes {start[1]}-{len(content) - 1}/{len(content)}"
            content = content[int(start[1]) :]
        self._send(status, headers, content, stop)

    def _create(self, hub, body):
        wanted = json.loads(body)
        repo = f"{wanted['organization']}/{wanted['name']}"
        status = 409 if repo in hub.branches else 200
        if status == 200:
            hub.put(repo, {".gitattributes": b""})
        self._send(status, {}, json.dumps({"url": f"{hub.url}/{repo}"}).encode())

    def _check_yaml(self, hub, body):
        self._json({"errors": [], "warnings": []})

    def _preupload(self, hub, body, repo, revision):
        hub.commit(repo, revision)
        modes = {file["path"]: ("regular", "lfs")[file["path"].endswith(LARGE)] for file in json.loads(body)["files"]}
        self._json({"files": [{"path": p, "uploadMode": m, "shouldIgnore": False} for p, m in modes.items()]})

    def _batch(self, hub, body, repo):
        objects = json.loads(body)["objects"]
        for wanted in objects:
            wanted["actions"] = {"upload": {"href": f"{hub.url}/large/{wanted['oid']}"}}
        self._json({"transfer": "basic", "objects": objects})

    def _put(self, hub, body, digest):
        assert hashlib.sha256(body).hexdigest() == digest
        hub.large[digest] = body
        self._send(200, {})

    def _commit(self, hub, body, repo, revision):
        files = dict(hub.commits[hub.commit(repo, revision)])
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = hub.large[value["oid"]]
        commit = hub.put(repo, files, revision)
        self._json({"commitUrl": f"{hub.url}/{repo}/commit/{commit}", "commitOid": commit})

    def _kaggle_path(self, hub, body, call):
        wanted = json.loads(body)
        handle = "/".join(wanted[key] for key in ("ownerSlug", "modelSlug", "framework", "instanceSlug"))
        handle = handle.replace("MODEL_FRAMEWORK_KERAS", "keras")
        if handle not in hub.branches:
            return self._send(404, {})
        files = hub.files(handle)
        if call == "GetModelInstance":
            self._json({"versionNumber": 1})
        elif call == "ListModelInstanceVersionFiles":
            self._json({"files": [{"name": name} for name in files], "nextPageToken": ""})
        else:
            self._send(200, {"Content-Type": "application/octet-stream"}, files[wanted["path"]])


_REPO, _REVISION = r"(?P<repo>[^/]+/[^/]+)", r"(?P<revision>[^/]+|refs/pr/\d+)"
_ROUTES = [
    ("GET", f"/api/models/{_REPO}", _HubHandler._info),
    ("GET", f"/api/models/{_REPO}/revision/{_REVISION}", _HubHandler._info),
    ("GET", f"/api/models/{_REPO}/tree/{_REVISION}", _HubHandler._tree),
    ("GET", f"/{_REPO}/resolve/{_REVISION}/(?P<path>.+)", _HubHandler._file),
    ("POST", "/api/repos/create", _HubHandler._create),
    ("POST", "/api/validate-yaml", _HubHandler._check_yaml),
    ("POST", f"/api/models/{_REPO}/preupload/{_REVISION}", _HubHandler._preupload),
    ("POST", f"/{_REPO}.git/info/lfs/objects/batch", _HubHandler._batch),
    ("PUT", "/large/(?P<digest>[0-9a-f]+)", _HubHandler._put),
    ("POST", f"/api/models/{_REPO}/commit/{_REVISION}", _HubHandler._commit),
    ("POST", "/api/v1/models.ModelApiService/(?P<call>.+)", _HubHandler._kaggle_path),
]


class HubServer(http.server.ThreadingHTTPServer):
    """Holds repositories in memory: `put` makes a commit, `files` reads one.

    `refusals` are (pattern of "METHOD /path", status, X-Error-Code). `cuts` are the bytes after which the next
    downloads of large files break; `ranges` are where downloads were resumed.
    """

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _HubHandler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.branches, self.commits, self.large = {}, {}, {}
        self.requests, self.tokens, self.refusals, self.cuts, self.ranges = [], [], [], [], []

    def put(self, repo, files, branch="main"):
        commit = hashlib.sha1(f"{repo}{branch}{len(self.commits)}".encode()).hexdigest()
        self.commits[commit] = files
        self.branches.setdefault(repo, {})[branch] = commit
        return commit

    def commit(self, repo, revision):
        if repo not in self.branches:
            raise KeyError("RepoNotFound")
        if revision in self.commits:
            return revision
        if revision not in self.branches[repo]:
            raise KeyError("RevisionNotFound")
        return self.branches[repo][revision]

    def files(self, repo, branch="main"):
        return self.commits[self.branches[repo][branch]]

    def downloads(self):
        """Returns the files that were downloaded since the last call."""
        found = [request for request in self.requests if re.match("GET /[^/]+/[^/]+/resolve/", request)]
        self.requests.clear()
        return found

    def pointer(self, content):
        return {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
