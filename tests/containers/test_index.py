"""A package index without TLS, behind a login: as one in a lab's own network."""

import base64
import functools
import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.kit import ROOT, kit
from tests.support.wheels import of_image, wheel

TAG = f"accelkit-test-index-{os.getpid()}:latest"
LOGIN = "somebody:their-password"


class _Index(SimpleHTTPRequestHandler):
    """Serves the folder `simple` to who knows the login."""

    def do_GET(self) -> None:
        expected = f"Basic {base64.b64encode(LOGIN.encode()).decode()}"
        if self.headers.get("Authorization") == expected:
            super().do_GET()
            return
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="index"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """Its address, on the engine's bridge: as a name of the network, it is not this machine's loopback, which pip trusts anyway."""
    files = tmp_path / "files"
    files.mkdir()
    of_image(files)
    wheel(files, "six", "1.0")
    wheel(files, "kitten", "1.0")
    for file in files.iterdir():
        page = tmp_path / "served" / "simple" / file.name.partition("-")[0] / "index.html"
        page.parent.mkdir(parents=True)
        page.write_text(f'<a href="{file.name}">{file.name}</a>')
        file.rename(page.parent / file.name)
    inspect = ["docker", "network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Gateway}}"]
    host = subprocess.check_output(inspect, text=True).strip()
    handler = functools.partial(_Index, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer((host, 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{LOGIN}@{host}:{server.server_port}/simple"
        server.shutdown()


def test_an_index_without_tls_serves_what_is_locked(index: str, tmp_path: Path) -> None:
    """What resolves is also fetched, since the hashes decide; neither the lock, the image nor what is printed tells the login."""
    base = subprocess.check_output([str(ROOT / "ci" / "base-image")], text=True).strip()
    (tmp_path / "mine.txt").write_text("kitten\n")
    (tmp_path / "kit.yaml").write_text(f"build:\n  base: {base}\n  network: host\n  requirements: [mine.txt]\n")
    asked = ["build", "cpu", "--tag", TAG, "--no-cache", "--sbom", "sbom"]
    try:
        done = kit(*asked, cwd=tmp_path, env={"KIT_INDEX_URL": index, "KIT_TORCH_INDEX": index})
        assert done.code == 0, done.err
        shown = subprocess.check_output(["docker", "image", "inspect", TAG], text=True)
        shown += subprocess.check_output(["docker", "history", "--no-trunc", TAG], text=True)
        run = ["docker", "run", "--rm", TAG, "python3", "-c", "import kitten; print(kitten.VERSION)"]
        assert subprocess.check_output(run, text=True).strip() == "1.0"
    finally:
        subprocess.run(["docker", "rmi", "--force", TAG], capture_output=True, check=False)

    assert json.loads(shown.partition("\nIMAGE")[0])[0]["Config"]
    written = [tmp_path / "kit.lock", *(tmp_path / "sbom").iterdir()]
    told = "".join([shown, done.out, done.err, *(path.read_text() for path in written)])
    assert not re.search("somebody|their-password", told)
