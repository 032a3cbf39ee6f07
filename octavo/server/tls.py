"""HTTPS: the certificate's files are tried before anything else is done, so that a wrong one is one line at the start."""

from __future__ import annotations

import ssl

from octavo.config import OPTIONS, EngineConfig
from octavo.errors import ConfigError


def check_tls(config: EngineConfig) -> None:
    """Raises ConfigError, naming the flag, when the files of `ssl_*` cannot be used."""
    if config.ssl_certfile is None:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile, password=_no_password)
    except (OSError, ValueError) as error:
        files = config.ssl_certfile + (f" with --ssl-keyfile {config.ssl_keyfile}" if config.ssl_keyfile else "")
        raise OPTIONS["ssl_certfile"].error(f"{files} cannot be used: {error}") from None
    if config.ssl_ca_certs is not None:
        try:
            context.load_verify_locations(config.ssl_ca_certs)
        except OSError as error:
            raise OPTIONS["ssl_ca_certs"].error(f"{config.ssl_ca_certs} cannot be used: {error}") from None


def _no_password() -> str:
    raise ConfigError("--ssl-keyfile is encrypted; give one that is not", parameter="ssl_keyfile")
