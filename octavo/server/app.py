"""The server as a whole: `serve` for the command line, `create_app` for the ASGI application around a server's state."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from octavo.config import EngineConfig
from octavo.errors import StartupError
from octavo.server.auth import RequireKey, with_keys_of_file
from octavo.server.startup import ModelOpening, Phases, allow_open_files, bind, configure_logging, url
from octavo.weights.hub import check_model

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from octavo.engine.client import EngineClient
    from octavo.server.state import ServerState

logger = logging.getLogger(__name__)


def serve(config: EngineConfig, start_engine: Callable[[EngineConfig], EngineClient] | None = None) -> int:
    """Serve until a signal or the engine's death; the process's exit code. A start that fails is one line on stderr and 1.

    The order is chosen for the time to the first answer: after a look at the model's path the port, then the engine's
    process, which loads while a thread reads the tokenizer and this one imports the HTTP libraries. Tests start other
    engines.
    """
    phases = Phases()
    configure_logging()
    try:
        allow_open_files()
        config = with_keys_of_file(config)
        check_model(config)
        if config.ssl_certfile is not None:
            from octavo.server.tls import check_tls

            check_tls(config)
        with bind(config.host, config.port) as listener:
            phases.mark("port bound")
            logger.info("Listening on %s", url(listener, config))
            if start_engine is None:
                from octavo.engine.process import ProcessClient

                start_engine = ProcessClient
            client = start_engine(config)
            try:
                opening = ModelOpening(config, phases)
                try:
                    from octavo.server.lifecycle import run

                    return run(config, listener, client, opening, phases)
                finally:
                    opening.close()
            finally:
                client.close()
    except StartupError as error:
        print(f"octavo: error: {error.message}", file=sys.stderr)
        return 1


def create_app(server: ServerState) -> ASGIApp:
    """The ASGI application of all routes, with the key check where keys are set."""
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    from octavo.server.endpoint import Endpoint
    from octavo.server.observe import Observe
    from octavo.server.openapi import openapi
    from octavo.server.routes import OPERATIONS

    async def plain_error(request: Request, error: Exception) -> Response:
        """Unknown paths and methods, in the words that FastAPI has for them."""
        assert isinstance(error, HTTPException)
        return JSONResponse({"detail": error.detail}, error.status_code, error.headers)

    routes = [Route("/openapi.json", Endpoint("/openapi.json", server, openapi), methods=["GET"])]
    for operation in OPERATIONS:
        routes.append(Route(operation.path, operation.endpoint(server), methods=list(operation.methods)))
    app: ASGIApp = Starlette(routes=routes, exception_handlers={HTTPException: plain_error})
    if server.config.api_key:
        app = RequireKey(app, server.config)
    if server.config.allowed_origins:
        app = _share(app, server.config)
    return _Rooted(Observe(app, server.metrics), server.config.root_path)


def _share(app: ASGIApp, config: EngineConfig) -> ASGIApp:
    """Answer browsers' questions about other origins (CORS), which come without a key."""
    from starlette.middleware.cors import CORSMiddleware

    return CORSMiddleware(
        app, config.allowed_origins, config.allowed_methods, config.allowed_headers, config.allow_credentials
    )


class _Rooted:
    """Tells the routes where a proxy shows them, whether or not it takes that off the paths that it hands on, and how to
    send what is of no interest to anybody on the way out."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["root_path"] = self._root_path
        scope["octavo.send"] = send
        await self._app(scope, receive, send)
