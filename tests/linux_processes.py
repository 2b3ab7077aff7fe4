"""The processes of this machine and what they listen on, as Linux tells."""

import ipaddress
import os
from contextlib import suppress
from pathlib import Path


def descendants(process: int) -> set[int]:
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found, grown = {process}, True
    while grown:
        more = {child for child, parent in parents.items() if parent in found} | found
        grown, found = len(more) > len(found), more
    return found - {process}


def listening(processes: set[int]) -> set[tuple[int, str]]:
    """The ports that processes listen on, and the addresses."""
    sockets = set()
    for process in processes:
        for path in Path(f"/proc/{process}/fd").glob("*"):
            with suppress(OSError):
                sockets.add(os.readlink(path))
    found = set()
    for file in ("tcp", "tcp6"):
        for line in Path("/proc/net", file).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                address, port = fields[1].split(":")
                found.add((int(port, 16), readable(address)))
    return found


def readable(address: str) -> str:
    words = [bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8)]
    made = ipaddress.ip_address(b"".join(words))
    return str(getattr(made, "ipv4_mapped", None) or made)
