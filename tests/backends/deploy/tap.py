"""A tap in the line between the sites and the server: it has the server's certificate, and keeps what sites say."""

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

PIECE = 2**16


class Tap:
    """Passes on what it hears. `connections` has what the sites said on each, in the clear.

    Parameters
    ----------
    operator
        The folder with the server's key and certificate, and the authority that issued it.
    to
        Whom it passes everything on to.
    """

    def __init__(self, operator: Path, to: str) -> None:
        self._host, _, self._port = to.partition(":")
        self._inside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._inside.load_cert_chain(operator / "server.crt", operator / "server.key")
        self._outside = ssl.create_default_context(cafile=str(operator / "ca.crt"))
        self.connections: list[bytearray] = []

    @contextlib.contextmanager
    def listening(self) -> Iterator[str]:
        """The address on which it listens meanwhile."""
        loop = asyncio.new_event_loop()
        server = loop.run_until_complete(asyncio.start_server(self._pass_on, "127.0.0.1", 0, ssl=self._inside))
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            server.close()
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0.1))
            loop.close()

    async def _pass_on(self, site: asyncio.StreamReader, to_site: asyncio.StreamWriter) -> None:
        said = bytearray()
        self.connections.append(said)
        server, to_server = await asyncio.open_connection(self._host, int(self._port), ssl=self._outside)
        await asyncio.gather(_copy(site, to_server, said), _copy(server, to_site, bytearray()))


async def _copy(source: asyncio.StreamReader, to: asyncio.StreamWriter, kept: bytearray) -> None:
    with contextlib.suppress(OSError):
        while piece := await source.read(PIECE):
            kept += piece
            to.write(piece)
            await to.drain()
    with contextlib.suppress(OSError):
        to.close()
