"""Runs the application on a socket until it is told to stop."""

import asyncio
import socket
from collections.abc import Callable

import uvicorn

from freehold.impl.serving.app import create_app
from freehold.impl.serving.assembly import Loaded
from freehold.impl.serving.completion import ServedModel
from freehold.impl.serving.loop import EngineLoop
from freehold.spec.errors import InvalidInput

# How long clients have to read what was sent to them before the server stopped.
_SLOW_CLIENT_S = 5
_LOOK_FOR_SECOND_SIGNAL_S = 0.1


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to an address, not listening yet; port 0 takes a free one.

    Raises InvalidInput when the address cannot be had.
    """
    if not 0 <= port < 1 << 16:
        raise InvalidInput(f"cannot listen on port {port}: choose one from 1 to 65535, or 0 for a free one")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise InvalidInput(f"cannot listen on {host}:{port} ({error}): choose another --host or --port") from error
    return bound


def url_of(bound: socket.socket) -> str:
    """The address of a bound socket, for a browser."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if bound.family == socket.AF_INET6 else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """A uvicorn server whose engine ends with it: SIGINT and SIGTERM stop it, then take their usual effect.

    Told to stop, it refuses new requests, lets those under way go on for `grace_s` seconds, and ends the rest with an
    error. A second Ctrl-C cuts the grace short.
    """

    def __init__(
        self, loop: EngineLoop, model: ServedModel, *, grace_s: float, on_listening: Callable[[], None] = lambda: None
    ) -> None:
        """`on_listening`: called once requests are taken."""
        config = uvicorn.Config(
            create_app(loop, model),
            lifespan="off",
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=_SLOW_CLIENT_S,
        )
        super().__init__(config)
        self._loop = loop
        self._grace_s = grace_s
        self._on_listening = on_listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        if self.started:
            self._on_listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the engine first: every answer under way ends by that, and so do the connections."""
        closing = asyncio.create_task(asyncio.to_thread(self._loop.close, self._grace_s))
        while not closing.done():
            await asyncio.wait((closing,), timeout=_LOOK_FOR_SECOND_SIGNAL_S)
            if self.force_exit:
                self._loop.close()
        await closing
        await super().shutdown(sockets)


def run(
    model: Loaded, bound: socket.socket, *, grace_s: float, on_listening: Callable[[], None] = lambda: None
) -> None:
    """Serve a loaded engine until SIGINT or SIGTERM. Afterwards nothing is held, and the signal takes its usual effect.

    Raises what broke the engine, if that is how it ended.
    """
    with EngineLoop(model.engine) as loop:
        try:
            Server(loop, model, grace_s=grace_s, on_listening=on_listening).run(sockets=[bound])
        finally:
            if loop.failure:
                raise loop.failure
