"""A package index without TLS, behind a login: as one in a lab's own network."""

import base64
import functools
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.kit import ROOT, Ended, kit
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Its kit.yaml wants the package `kitten`."""
    base = subprocess.check_output([str(ROOT / "ci" / "base-image")], text=True).strip()
    (tmp_path / "mine.txt").write_text("kitten\n")
    (tmp_path / "kit.yaml").write_text(f"build:\n  base: {base}\n  network: host\n  requirements: [mine.txt]\n")
    return tmp_path


def built(folder: Path, *more: str, env: dict[str, str]) -> tuple[Ended, str, str]:
    """What `kit build` printed, what the engine shows of the image, and kitten's version in it."""
    try:
        done = kit("build", "cpu", "--tag", TAG, "--no-cache", *more, cwd=folder, env=env)
        assert done.code == 0, done.err
        shown = subprocess.check_output(["docker", "image", "inspect", TAG], text=True)
        shown += subprocess.check_output(["docker", "history", "--no-trunc", TAG], text=True)
        run = ["docker", "run", "--rm", TAG, "python3", "-c", "import kitten; print(kitten.VERSION)"]
        return done, shown, subprocess.check_output(run, text=True).strip()
    finally:
        subprocess.run(["docker", "rmi", "--force", TAG], capture_output=True, check=False)


def test_an_index_without_tls_serves_what_is_locked(index: str, folder: Path) -> None:
    """What resolves is also fetched, since the hashes decide; neither the lock, the image nor what is printed tells the login."""
    done, shown, version = built(folder, "--sbom", "sbom", env={"KIT_INDEX_URL": index, "KIT_TORCH_INDEX": index})
    assert version == "1.0"

    written = [folder / "kit.lock", *(folder / "sbom").iterdir()]
    told = "".join([shown, done.out, done.err, *(path.read_text() for path in written)])
    assert TAG in told
    assert not re.search("somebody|their-password", told)


def test_packages_come_from_where_kit_is_told(
    index: str, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Uv's own settings are not the build's, which could not fetch what they name; wheels that are links are taken."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    wheel(elsewhere, "kitten", "3.0")
    (folder / "mine").mkdir()
    wheel(folder, "kitten", "2.0")
    (folder / "mine" / "kitten-2.0-py3-none-any.whl").symlink_to(folder / "kitten-2.0-py3-none-any.whl")
    env = {"KIT_INDEX_URL": index, "KIT_TORCH_INDEX": index, "UV_FIND_LINKS": str(elsewhere)}
    assert built(folder, "--wheels", "mine", env=env)[2] == "2.0"
