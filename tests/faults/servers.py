"""Real servers for tests, each started on a free port of this machine and ended with the tests."""

import base64
import contextlib
import functools
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from free_ports import free_port

__all__ = ["BUCKET", "S3", "azure", "google", "moto", "nginx", "s3rver"]

BUCKET = "bucket"
_ROOT = Path(__file__).parents[2]
_START_S = 60.0


@dataclass(frozen=True)
class S3:
    """A server of S3 with an empty bucket, ``BUCKET``."""

    endpoint_url: str
    key: str
    secret: str
    kind: str = field(default="")

    def options(self, endpoint_url=None):
        """Return the storage options, through a proxy if its URL is given."""
        return {"key": self.key, "secret": self.secret, "endpoint_url": endpoint_url or self.endpoint_url}

    def put(self, name, content):
        self.client().put_object(Bucket=BUCKET, Key=name, Body=content)

    def client(self):
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint_url,
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
            region_name="us-east-1",
        )


@contextlib.contextmanager
def moto():
    """Start moto's server in a thread."""
    _share_descriptions()
    server = _imported("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    found = S3(f"http://{host}:{port}", "testing", "testing", "moto")
    found.client().create_bucket(Bucket=BUCKET)
    yield found
    server.stop()


@contextlib.contextmanager
def s3rver(directory):
    """Start s3rver, another program in another language."""
    _share_descriptions()
    program = _of_node("s3rver/bin/s3rver.js") or _lacking("s3rver")
    port = free_port()
    command = ["node", program, "-d", directory, "-a", "127.0.0.1", "-p", str(port), "--silent"]
    with _running([*command, "--configure-bucket", BUCKET], port, directory / "s3rver.log"):
        yield S3(f"http://127.0.0.1:{port}", "S3RVER", "S3RVER", "s3rver")


@contextlib.contextmanager
def nginx(directory):
    """Start nginx over ``directory / "files"``; yields its URL."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        _lacking("nginx")
    files = directory / "files"
    files.mkdir()
    port = free_port()
    temporary = "\n".join(
        f"{kind}_temp_path {directory}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    configuration = directory / "nginx.conf"
    configuration.write_text(
        f"""
        daemon off; master_process off; pid {directory}/nginx.pid; error_log {directory}/error.log;
        events {{}}
        http {{
            access_log off;
            {temporary}
            server {{ listen 127.0.0.1:{port}; root {files}; }}
        }}
        """
    )
    directory.chmod(0o755)
    command = [program, "-p", directory, "-c", configuration, "-e", directory / "error.log"]
    with _running(command, port, directory / "nginx.log"):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def azure(directory):
    """Start Azurite; yields its URL, and a function from a URL to adlfs's options."""
    _imported("adlfs")
    program = _of_node(".bin/azurite-blob")
    if program is None:
        pytest.skip("Azurite is not installed: npm install --prefix .servers azurite")
    port = free_port()
    command = [program, "--blobPort", str(port), "--inMemoryPersistence", "--silent", "--skipApiVersionCheck"]
    account, key = "devstoreaccount1", base64.b64encode(b"a key of our own").decode()

    def options_of(url):
        parts = {"DefaultEndpointsProtocol": "http", "AccountName": account, "AccountKey": key}
        parts["BlobEndpoint"] = f"{url}/{account}"
        return {"connection_string": ";".join(f"{name}={value}" for name, value in parts.items())}

    environment = {"AZURITE_ACCOUNTS": f"{account}:{key}"}
    with _running([*command, "--disableTelemetry"], port, directory / "azurite.log", environment):
        yield f"http://127.0.0.1:{port}", options_of


@contextlib.contextmanager
def google(directory):
    """Start an emulator of Google's storage; yields its URL, and a function from a URL to gcsfs's options."""
    # It would ask for the kind of a bucket, by another protocol.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    for name in ("gcsfs", "gcp_storage_emulator"):
        _imported(name)
    port = free_port()
    command = [sys.executable, "-m", "gcp_storage_emulator", "start", "--host", "127.0.0.1", "--port", str(port)]
    with _running([*command, "--in-memory"], port, directory / "google.log"):
        yield f"http://127.0.0.1:{port}", lambda url: {"token": "anon", "endpoint_url": url}


@contextlib.contextmanager
def _running(command, port, log, environment=None):
    setpriv = shutil.which("setpriv")
    # Tests that are killed leave no server behind.
    prefix = [setpriv, "--pdeathsig", "KILL"] if setpriv else []
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*prefix, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **(environment or {})},
        )
    try:
        deadline = time.monotonic() + _START_S
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"{command[0]} does not answer: {log.read_text()}")
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@functools.cache
def _share_descriptions():
    """Let the clients of this process share what botocore reads about services: the next is made in a tenth of the time."""
    session = _imported("botocore.session")
    session.create_loader = functools.cache(session.create_loader)


def _of_node(path):
    program = Path(os.environ.get("FKAT_DATA_SERVERS", _ROOT / ".servers"), "node_modules", path)
    return program if shutil.which("node") and program.is_file() else None


def _imported(name):
    try:
        return __import__(name, fromlist=["__name__"])
    except ImportError:
        _lacking(name)


def _lacking(name):
    if os.environ.get("CI") or os.environ.get("FKAT_DATA_REQUIRE_SERVERS") == "1":
        pytest.fail(f"{name} is not installed: run scripts/servers, and install the group 'test'")
    pytest.skip(f"{name} is not installed: scripts/servers installs it")
