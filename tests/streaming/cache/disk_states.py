"""What a disk may hold after a power loss: the states that a program's system calls allow, as ALICE enumerates them.

What was not brought to the disk by fsync may be there or not, whatever came before or after it: names that were made,
renamed and removed, one by one; and of a file's content the bytes that were synced, the present ones, half of them, or
zeros.
"""

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

CALLS = "openat,write,pwrite64,ftruncate,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat"
_LINE = re.compile(r"^\d+ +(\w+)\((.*)\) += (\d+)(<.*>)?")
_UNFINISHED = re.compile(r"^(\d+) +(.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(r"^(\d+) +<\.\.\. \w+ resumed>(.*)$")
_HEX = re.compile(r"[<\"]((?:\\x[0-9a-f]{2})*)[>\"]")


def recorded(command, log, **options):
    """Run a command; return its calls that succeeded: name, arguments, result, path of a result that is a file."""
    strace = ["strace", "-f", "-y", "-xx", "-s", "1000000", "-o", log, "-e", f"trace={CALLS}"]
    subprocess.run([*map(str, (*strace, *command))], check=True, timeout=170, **options)
    calls, unfinished = [], {}
    for text in Path(log).read_text().splitlines():
        line = text
        if match := _UNFINISHED.match(line):
            unfinished[match[1]] = match[2]
            continue
        if match := _RESUMED.match(line):
            line = f"{match[1]} {unfinished.pop(match[1])}{match[2]}"
        if match := _LINE.match(line):
            calls.append((match[1], match[2].split(", "), int(match[3]), _bytes(match[4] or "").decode()))
    return calls


def _bytes(argument):
    match = _HEX.search(argument)
    return bytes.fromhex(match[1].replace("\\x", "")) if match else b""


@dataclass(eq=False)
class File:
    """A file's content: what is on the disk for sure, and what was written since."""

    synced: bytes = b""
    current: bytearray = field(default_factory=bytearray)

    def contents(self):
        now = bytes(self.current)
        if now == self.synced:
            return [now]
        return dict.fromkeys([now, self.synced, bytes(len(now)), now[: len(now) // 2]])


class Disk:
    """Follows the calls that concern a directory.

    Args:
        root: The directory.
        is_ignored: Told of a path below it, whether it does not matter if it is there.
        left_out: Paths that are not followed.
    """

    def __init__(self, root, is_ignored, left_out=()):
        self._root = str(root)
        self._is_ignored = is_ignored
        self._left_out = left_out
        #: By path, a File, or None for a folder: what is on the disk for sure, and what a process sees.
        self._synced, self._seen = {"": None}, {"": None}
        #: What was done and is not on the disk for sure: source, destination, what is there then.
        self._pending = []
        self._offsets = {}

    def follow(self, call, arguments, result, opened):
        """Do what a call did; return whether the directory may be another one after a power loss now."""
        method = getattr(self, f"_do_{call.removesuffix('2').removesuffix('at').removesuffix('64')}", None)
        method = {"openat": self._do_open, "fdatasync": self._do_fsync}.get(call, method)
        return bool(method and method(arguments, result, opened))

    def states(self, draw, num_random):
        """Yield what may be there: dictionaries from a path to bytes, or to None for a folder."""
        places = range(len(self._pending))
        telling = [
            place for place in places if not self._is_ignored(self._pending[place][1] or self._pending[place][0])
        ]
        subsets = [places, [], *([place] for place in telling)]
        subsets += [[other for other in places if other != place] for place in telling]
        subsets += [[place for place in places if draw.random() < 0.5] for _ in range(num_random)]
        for subset in subsets:
            there = dict(self._synced)
            for place in subset:
                _apply(there, *self._pending[place])
            there = {path: file for path, file in there.items() if path and _has_folders(path, there)}
            yield {path: None if file is None else bytes(file.current) for path, file in there.items()}
            for path, file in there.items():
                if file is not None and not self._is_ignored(path):
                    for content in file.contents():
                        state = {other: None if found is None else found.synced for other, found in there.items()}
                        yield state | {path: content}

    def _within(self, path):
        if path == self._root:
            return ""
        below = path[len(self._root) + 1 :] if path.startswith(self._root + "/") else None
        return None if below in self._left_out else below

    def _path(self, *arguments):
        """Return a path given as a name, or as a folder's descriptor and a name."""
        *folder, name = (_bytes(argument).decode() for argument in arguments)
        return self._within(str(PurePosixPath(*folder, name)))

    def _do(self, source, target, file):
        if source is None and target is None:
            return False
        self._pending.append((source, target, file))
        _apply(self._seen, source, target, file)
        return True

    def _do_mkdir(self, arguments, result, opened):
        return self._do(None, self._path(*arguments[:-1]), None)

    def _do_open(self, arguments, result, opened):
        path = self._within(opened)
        self._offsets[result] = 0
        return (
            path is not None and "O_CREAT" in arguments[2] and path not in self._seen and self._do(None, path, File())
        )

    def _do_write(self, arguments, result, opened):
        descriptor = int(arguments[0].split("<")[0])
        offset = self._offsets.get(descriptor, 0)
        self._offsets[descriptor] = offset + result
        return self._written(arguments, offset)

    def _do_pwrite(self, arguments, result, opened):
        return self._written(arguments, int(arguments[3]))

    def _written(self, arguments, offset):
        file, data = self._file(arguments[0]), _bytes(arguments[1])
        if file is None:
            return False
        file.current.extend(bytes(max(0, offset + len(data) - len(file.current))))
        file.current[offset : offset + len(data)] = data
        return True

    def _do_ftruncate(self, arguments, result, opened):
        file, size = self._file(arguments[0]), int(arguments[1])
        if file is None:
            return False
        del file.current[size:]
        file.current.extend(bytes(size - len(file.current)))
        return True

    def _file(self, argument):
        return self._seen.get(self._within(_bytes(argument).decode()))

    def _do_fsync(self, arguments, result, opened):
        path = self._within(_bytes(arguments[0]).decode())
        file = self._seen.get(path)
        if file is not None:
            file.synced = bytes(file.current)
        elif path is not None:
            left = []
            for step in self._pending:
                if str(PurePosixPath(step[1] or step[0]).parent) in (path, path or "."):
                    _apply(self._synced, *step)
                else:
                    left.append(step)
            self._pending = left
        return path is not None

    def _do_rename(self, arguments, result, opened):
        source, target = arguments[:2] if len(arguments) == 2 else ("", "")
        source = self._path(source) if source else self._path(*arguments[0:2])
        target = self._path(target) if target else self._path(*arguments[2:4])
        return self._do(source, target, self._seen.get(source))

    def _do_unlink(self, arguments, result, opened):
        return self._do(self._path(*arguments[:2] if len(arguments) == 3 else arguments), None, None)


def _apply(there, source, target, file):
    if source is not None:
        there.pop(source, None)
    if target is not None:
        there[target] = file


def _has_folders(path, there):
    return all(str(parent) == "." or there.get(str(parent), there) is None for parent in PurePosixPath(path).parents)
