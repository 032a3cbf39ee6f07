"""A model hub on the loopback interface: as much of the Hugging Face hub's API, and of ModelScope's, as downloading needs.

It can be told to break a connection in the middle of a file, and it remembers what was asked.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
GOOD_TOKEN = "hf_goodtoken"


@dataclass
class Repository:
    files: dict[str, bytes]
    gated: bool = False  # whoever has the good token gets it
    private: bool = False


@dataclass
class HubState:
    repositories: dict[str, Repository]
    break_after: dict[str, int] = field(default_factory=dict)  # file -> bytes after which the connection ends, once
    is_failing: bool = False  # 503 to every request for a file
    is_failing_after_break: bool = False
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)  # method, path, Range
    endpoint: str = ""

    def downloads(self) -> list[str]:
        """The files that were fetched, in order."""
        found = (
            re.search(r"/resolve/[^/]+/(.+)$|FilePath=([^&]+)", path) for method, path, _ in self.requests if method == "GET"
        )
        return [match[1] or match[2] for match in found if match]

    def ranges(self) -> list[str]:
        return [value for _, _, value in self.requests if value]


@contextmanager
def run_hub(state: HubState) -> Iterator[HubState]:
    handler = type("Handler", (_Handler,), {"state": state})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    state.endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    state: HubState
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        self.state.requests.append((self.command, self.path, self.headers.get("Range")))
        path, query = urlsplit(self.path).path, {key: value[0] for key, value in parse_qs(urlsplit(self.path).query).items()}
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path):
            self.hugging_face_listing(match[1], match[2], match[3] or "main")
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.hugging_face_file(match[1], match[2], match[3])
        elif match := re.fullmatch(r"/api/v1/models/([^/]+/[^/]+)(/.*)?", path):
            self.modelscope(match[1], match[2] or "", query)
        else:
            self.refuse(404, "", "no such route")

    # -- Hugging Face -----------------------------------------------------------------------------------------------

    def hugging_face_listing(self, name: str, kind: str | None, revision: str) -> None:
        repository = self.allowed(name)
        if repository is None:
            return
        if revision not in ("main", COMMIT):
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return
        if kind == "tree":
            tree = [
                {"type": "file", "path": file, "size": len(data), "oid": etag(data)}
                for file, data in repository.files.items()
            ]
            self.send_json(tree)
            return
        siblings = [{"rfilename": file, "size": len(data), "blobId": etag(data)} for file, data in repository.files.items()]
        self.send_json(
            {"_id": "1", "id": name, "modelId": name, "sha": COMMIT, "private": False, "tags": [], "siblings": siblings}
        )

    def hugging_face_file(self, name: str, revision: str, file: str) -> None:
        repository = self.allowed(name, needs_terms=True)
        if repository is None:
            return
        data = repository.files.get(file)
        if data is None:
            self.refuse(404, "EntryNotFound", "Entry not found")
            return
        self.send_file(file, data, {"X-Repo-Commit": COMMIT, "ETag": f'"{etag(data)}"'})

    def allowed(self, name: str, needs_terms: bool = False) -> Repository | None:
        """The repository, or None after the refusal was sent. The real hub shows a gated repository's files to all."""
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token and not token.startswith("hf_"):
            self.refuse(401, "", "Invalid credentials in Authorization header")
            return None
        repository = self.state.repositories.get(name)
        if repository is None or (repository.private and token != GOOD_TOKEN):
            self.refuse(404 if token else 401, "RepoNotFound", "Repository not found")
            return None
        if repository.gated and needs_terms and token != GOOD_TOKEN:
            self.refuse(403 if token else 401, "GatedRepo", f"Access to model {name} is restricted")
            return None
        return repository

    # -- ModelScope -------------------------------------------------------------------------------------------------

    def modelscope(self, name: str, route: str, query: dict[str, str]) -> None:
        repository = self.state.repositories.get(name)
        if repository is None:
            self.send_json({"Code": 10010205001, "Success": False, "Message": "record not found"}, 404)
        elif repository.private:
            self.send_json({"Code": 10010101007, "Success": False, "Message": "no permission"}, 403)
        elif route == "/repo" and "FilePath" in query:
            self.send_file(query["FilePath"], repository.files[query["FilePath"]], {})
        elif route == "/repo/files":
            self.send_json({"Code": 200, "Success": True, "Data": {"Files": modelscope_files(repository)}})
        elif route == "/revisions":
            master = {"Revision": "master", "CommitId": COMMIT, "CreatedAt": 1_700_000_000}
            self.send_json({"Code": 200, "Success": True, "Data": {"RevisionMap": {"Branches": [master], "Tags": []}}})
        else:
            self.send_json(
                {"Code": 200, "Success": True, "Data": {"Id": 1, "Path": name.split("/")[0], "Name": name.split("/")[1]}}
            )

    # -- answers ----------------------------------------------------------------------------------------------------

    def send_file(self, file: str, data: bytes, headers: dict[str, str]) -> None:
        if self.command == "GET" and self.state.is_failing:
            self.refuse(503, "", "try later")
            return
        start = 0
        if requested := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
            start = int(requested[1])
        end = min(len(data), int(requested[2]) + 1) if requested and requested[2] else len(data)
        self.send_response(206 if requested else 200)
        if requested:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(end - start))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if self.command == "HEAD":
            return
        limit = self.state.break_after.pop(file, None)
        self.wfile.write(data[start:end] if limit is None else data[start:end][:limit])
        if limit is not None:
            self.close_connection = True
            self.state.is_failing = self.state.is_failing_after_break

    def refuse(self, status: int, code: str, message: str) -> None:
        body = json.dumps({"error": message}).encode()
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_json(self, value: Any, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def etag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


def modelscope_files(repository: Repository) -> list[dict[str, Any]]:
    return [
        {
            "Name": file.rsplit("/")[-1],
            "Path": file,
            "Type": "blob",
            "Size": len(data),
            "Sha256": hashlib.sha256(data).hexdigest(),
            "Revision": COMMIT,
            "CommittedDate": 1_700_000_000,
            "IsLFS": False,
        }
        for file, data in repository.files.items()
    ]
