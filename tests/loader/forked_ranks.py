"""Run a program as every rank of a job, in processes forked from one that has imported torch: a second instead of ten.

Command line: modules that all ranks need, as a list in JSON; then for each job in turn, its number of ranks, and the program with its arguments as a list in JSON.
"""

import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
import traceback

END = "\0"


IMPORTS = ("torch.distributed.checkpoint", "torch.distributed.fsdp", "fkat_data.configuration")


def run_jobs(*jobs, folder, imports=IMPORTS):
    """Run jobs one after another; each is a number of ranks, a program and its arguments. Return what each prints.

    Args:
        *jobs: The jobs.
        folder: Their working directory.
        imports: What is imported once for all ranks.
    """
    words = [word for size, *command in jobs for word in (str(size), json.dumps([str(part) for part in command]))]
    environment = {name: value for name, value in os.environ.items() if not name.endswith(("RANK", "WORLD_SIZE"))}
    environment |= {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", __file__, json.dumps(imports), *words]
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split(END)[:-1]


def main():
    imports, *words = sys.argv[1:]
    for name in json.loads(imports):
        importlib.import_module(name)
    for size, command in zip(map(int, words[::2]), words[1::2], strict=True):
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        children = []
        for rank in range(size):
            child = os.fork()
            if child == 0:
                be_rank(rank, size, port, json.loads(command))
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        if any(codes):
            sys.exit(f"{command} on {size} ranks: {codes}")
        print(END, end="", flush=True)


def be_rank(rank, size, port, command):
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in place.items()}
    sys.argv = command
    code = 1
    try:
        runpy.run_path(command[0], run_name="__main__")
        code = 0
    except BaseException:  # noqa: BLE001 - the fork must not go on as the parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
