"""The way to the engine: what DOCKER_HOST and the docker command's contexts say, TLS included."""

import hashlib
import http.server
import json
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from accelkit.host.engine import client
from accelkit.host.errors import EngineUnavailable


class Engine(http.server.BaseHTTPRequestHandler):
    """Answers what the SDK asks when it connects."""

    def do_GET(self) -> None:
        """A version and "OK"."""
        body = b'{"ApiVersion": "1.43"}' if self.path.endswith("version") else b"OK"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.pem, cert.pem and key.pem of one self-signed certificate for 127.0.0.1, the server's and the client's."""
    folder = tmp_path_factory.mktemp("certificates")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=engine",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    (folder / "ca.pem").write_bytes((folder / "cert.pem").read_bytes())
    return folder


@pytest.fixture
def engine(certificates: Path) -> Iterator[str]:
    """The address of an engine that lets nobody in without the certificate."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
    context.load_verify_locations(certificates / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"tcp://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No way to an engine but the test's."""
    ours = ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")
    for name in (
        *ours,
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
    ):  # the latter overrule every certificate that the SDK is given
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))


def test_an_engine_behind_tls_is_reached_by_variables(
    engine: str, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DOCKER_TLS_VERIFY and DOCKER_CERT_PATH count as they do for docker; without them it is not reached."""
    monkeypatch.setenv("DOCKER_HOST", engine)
    with pytest.raises(EngineUnavailable):
        client.connect(5)
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(certificates))

    assert client.connect(5).ping()


def test_an_engine_behind_tls_is_reached_by_a_context(
    engine: str, certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The context's own files are what it is trusted by."""
    place = hashlib.sha256(b"far").hexdigest()
    (tmp_path / "contexts" / "meta" / place).mkdir(parents=True)
    tls = tmp_path / "contexts" / "tls" / place
    tls.mkdir(parents=True)
    (tls / "docker").symlink_to(certificates)
    meta = {"Name": "far", "Endpoints": {"docker": {"Host": engine, "SkipTLSVerify": False}}}
    (tmp_path / "contexts" / "meta" / place / "meta.json").write_text(json.dumps(meta))
    monkeypatch.setenv("DOCKER_CONTEXT", "far")

    assert client.connect(5).ping()


def test_certificates_that_are_not_there_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One error, which says that it is about TLS and which variable names the files."""
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path / "nowhere"))
    with pytest.raises(EngineUnavailable, match="TLS: ") as caught:
        client.connect(5)

    assert "DOCKER_CERT_PATH" in (caught.value.hint or "")


def test_an_engine_over_ssh_says_what_it_needs() -> None:
    """Where the SDK cannot speak ssh, the package that it needs is named."""
    script = """
import os, sys
sys.modules["paramiko"] = None  # as where it is not installed
os.environ["DOCKER_HOST"] = "ssh://nobody@127.0.0.1"
from accelkit.host.engine import client
from accelkit.host.errors import EngineUnavailable
try:
    client.connect(5)
except EngineUnavailable as error:
    print(error.message, error.hint)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert "ssh://nobody@127.0.0.1: ssh:// needs the package paramiko" in done.stdout, done.stderr
    assert "docker[ssh]" in done.stdout
