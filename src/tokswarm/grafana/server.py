"""One Grafana over HTTP: grafana-api's raw verbs by uid path, its errors translated to ours.

Only the verbs are used: the package's own methods need numeric ids, which Grafana 13 no longer takes, and fail
on an empty answer after the work was done.
"""

import logging
import string
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import requests
from grafana_api.grafana_api import GrafanaException
from grafana_api.grafana_face import GrafanaFace

from tokswarm.errors import ConfigError, PublishError

_log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
_TOKEN_CHARACTERS = frozenset(string.ascii_letters + string.digits + string.punctuation)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_HINTS = {
    401: "GRAFANA_TOKEN must be a token of a service account of this Grafana that has not expired",
    403: "the service account needs the role Editor on the folder (and Admin to create a data source)",
}


class RefusedError(PublishError):
    """Grafana answered, and said no; `status` is what it said it with."""

    def __init__(self, message: str, *, status: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status


def grafana_address(url: str) -> str:
    """The address as links begin with it, without a slash at its end. ConfigError for none, or with a user in it."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"the address of Grafana is {parts._replace(netloc=parts.hostname or '').geturl()!r}, expected a URL",
            hint="set GRAFANA_URL or --url, such as https://grafana.example.org or http://127.0.0.1:3000",
        )
    if parts.username is not None:
        raise ConfigError(
            "the address of Grafana has a user in it",
            hint="leave user and password out; publishing uses GRAFANA_TOKEN",
        )
    path = parts.path.strip("/")
    return f"{parts.scheme}://{parts.netloc}{'/' + path if path else ''}"


class GrafanaServer:
    """The few calls that publishing needs. Keeps the token to itself: it is in no message and no `repr`."""

    def __init__(self, url: str, token: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self.url = grafana_address(url)
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        token = token.strip()
        if not token or not _TOKEN_CHARACTERS.issuperset(token):
            raise ConfigError(
                "GRAFANA_TOKEN is empty" if not token else "GRAFANA_TOKEN has characters that no token has",
                hint="set it to a token of a service account (Grafana: Administration, Service accounts)",
            )
        if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
            _log.warning("the Grafana token goes over plain http to %s", parts.hostname)
        path = parts.path.strip("/")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        self._api = GrafanaFace(
            token,
            host=host,
            port=parts.port,
            url_path_prefix=f"{path}/" if path else "",
            protocol=parts.scheme,
            timeout=timeout_s,
        ).api
        # A redirected POST would arrive as a GET; better to be told the right address.
        self._api.s.max_redirects = 0

    def __repr__(self) -> str:
        return f"GrafanaServer({self.url!r})"

    def get(self, path: str) -> Any | None:
        """What is there; None when Grafana has nothing under this path."""
        try:
            return self._call("GET", path, lambda: self._api.GET(path))
        except RefusedError as refusal:
            if refusal.status == requests.codes.not_found:
                return None
            raise

    def post(self, path: str, body: dict[str, Any]) -> Any | None:
        """Create or save; None for an empty answer."""
        return self._call("POST", path, lambda: self._api.POST(path, body))

    def put(self, path: str, body: dict[str, Any]) -> Any | None:
        """Replace; None for an empty answer."""
        return self._call("PUT", path, lambda: self._api.PUT(path, body))

    def _call(self, verb: str, path: str, send: Callable[[], Any]) -> Any | None:
        where = f"{verb} {self.url}/api{path}"
        try:
            return send()
        except GrafanaException as error:
            raise RefusedError(
                f"Grafana refused {where}: {error.status_code} {_said(error.response)}",
                status=error.status_code,
                hint=_HINTS.get(error.status_code, ""),
            ) from error
        except requests.exceptions.JSONDecodeError as error:
            if not error.doc.strip():
                return None
            raise PublishError(
                f"{where} answered with something that is not JSON",
                hint="is this the address of Grafana itself, with its sub-path, and not of a login page or proxy?",
            ) from error
        except requests.exceptions.TooManyRedirects as error:
            raise PublishError(
                f"{where} answers with a redirect", hint="give the address it leads to (https, or another sub-path)"
            ) from error
        except requests.exceptions.Timeout as error:
            raise PublishError(
                f"{where} did not answer in time", hint="publishing again is safe: everything is saved by its uid"
            ) from error
        except requests.exceptions.SSLError as error:
            raise PublishError(
                f"{where}: the certificate was not accepted",
                hint="set REQUESTS_CA_BUNDLE to the file of your own certificate authority",
            ) from error
        except requests.exceptions.RequestException as error:
            raise PublishError(
                f"{where}: no connection ({type(error).__name__})", hint="is Grafana running, and the address right?"
            ) from error


def _said(response: object) -> str:
    if isinstance(response, dict) and isinstance(response.get("message"), str):
        said = " ".join(str(part) for part in (response.get("status"), response["message"]) if part)
    else:
        said = str(response)
    return said[:300]
