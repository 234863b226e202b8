"""Sources of the same files, real and with faults."""

import pytest


@pytest.fixture(scope="session")
def moto_server(shared_processes):
    import servers
    from stored_files import fill

    with servers.moto() as server:
        fill(server)
        yield server


@pytest.fixture(scope="session")
def s3rver_server(shared_processes, tmp_path_factory):
    import servers
    from stored_files import fill

    with servers.s3rver(tmp_path_factory.mktemp("s3rver")) as server:
        fill(server)
        yield server


@pytest.fixture(scope="session")
def nginx_server(shared_processes, tmp_path_factory):
    import servers
    from stored_files import write_into

    directory = tmp_path_factory.mktemp("nginx")
    with servers.nginx(directory) as url:
        (directory / "files" / "train").mkdir()
        write_into(directory / "files" / "train")
        yield url


@pytest.fixture
def through(processes, request, tmp_path, monkeypatch):
    """Return a function that opens a store by one of ``WAYS``, behind a server with faults."""
    import servers
    from proxy import FaultServer
    from stored_files import write_into

    from fkat_data.streaming.store import open_store

    opened = []

    def open_through(way, plan=None, *, num_retries=2, timeout_s=2.0, forever=False):
        client, _, kind = way.partition("-")
        if kind == "directory":
            source = tmp_path / "served"
            (source / "train").mkdir(parents=True, exist_ok=True)
            write_into(source / "train")
        else:
            server = request.getfixturevalue(f"{kind}_server")
            source = server if kind == "nginx" else server.endpoint_url
        faulty = FaultServer(source, plan, forever=forever).__enter__()
        url, options = f"{faulty.url}/train", None
        if client != "web":
            url, options = f"s3://{servers.BUCKET}/train", server.options(faulty.url)
        store = open_store(url, storage_options=options, num_retries=num_retries, timeout_s=timeout_s)
        opened.append((store, faulty))
        return store, faulty

    yield open_through
    for store, faulty in opened:
        store.close()
        faulty.__exit__()
