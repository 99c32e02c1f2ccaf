"""Which service is asked, and with which key. Keys are in this module's objects alone."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from httpx2 import Limits, Request, Timeout
from openai import AsyncOpenAI, DefaultAioHttpClient

from pipeline.spec import SpecError, require

HIDDEN = "<key>"
KEY_HEADERS = ("authorization", "api-key", "x-api-key", "x-portkey-api-key")


@dataclass(frozen=True, slots=True)
class Connection:
    """How a service is reached.

    `url` may hold `{endpoint}` and `{deployment}`. The key is read from the environment variable
    `key_variable` and sent in `key_header` (in `Authorization` as a bearer token). `secret_headers`
    maps further headers to environment variables; those that are not set are left out. A `movable`
    service may have another address in the next attempt of the same run.
    """

    url: str
    key_variable: str | None = None
    key_required: bool = True
    key_header: str = "Authorization"
    headers: dict[str, str] = field(default_factory=dict)
    secret_headers: dict[str, str] = field(default_factory=dict)
    query: dict[str, str] = field(default_factory=dict)
    movable: bool = False

    def __post_init__(self) -> None:
        """Refuse keys in the configuration, without repeating them."""
        for name in self.headers:
            if name.lower() in KEY_HEADERS:
                raise SpecError(
                    f"backend.connection.headers must not hold {name}: keys come from environment "
                    "variables (key_variable, secret_headers), so that no file holds them"
                )

    def address(self, endpoint: str | None, deployment: str) -> str:
        """The base URL."""
        if "{endpoint}" in self.url and not endpoint:
            raise SpecError(
                "backend.endpoint must be the address of the service; set it, or the environment "
                "variable that conf/backend reads it from"
            )
        address = self.url.format(endpoint=(endpoint or "").rstrip("/"), deployment=deployment)
        begins = address.startswith(("http://", "https://"))
        require(begins, "backend.endpoint", "begin with http:// or https://", address)
        return address


class Keys:
    """The secrets of one run: headers to send, and a redactor for whatever is shown."""

    def __init__(self, connection: Connection, service: str) -> None:
        """Read the environment.

        Raises:
            SpecError: the key that the service needs is not there.
        """
        key = os.environ.get(connection.key_variable or "", "").strip()
        if connection.key_required and not key:
            raise SpecError(
                f"backend={service} needs a key in the environment variable "
                f"{connection.key_variable}: export it and run again"
            )
        extra = {h: os.environ.get(v, "").strip() for h, v in connection.secret_headers.items()}
        self._secrets = [secret for secret in (key, *extra.values()) if secret]
        self._headers = {header: value for header, value in extra.items() if value}
        if key:
            bearer = connection.key_header.lower() == "authorization"
            self._headers[connection.key_header] = f"Bearer {key}" if bearer else key

    async def sign(self, request: Request) -> None:
        """Put the keys into the headers of a request, in place of the client's own."""
        request.headers.pop("Authorization", None)
        request.headers.update(self._headers)

    def hide(self, text: str) -> str:
        """`text` without any key."""
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text


def client(
    connection: Connection,
    keys: Keys,
    address: str,
    query: Mapping[str, str | None],
    limits: tuple[int, float],
) -> AsyncOpenAI:
    """The official client over aiohttp, its own retries off.

    `limits` are connections and seconds for one attempt.
    """
    most, seconds = limits
    timeout = Timeout(seconds, connect=min(seconds, 30.0))
    return AsyncOpenAI(
        api_key="none",  # Keys.sign puts the real one in
        base_url=address,
        default_headers=connection.headers,
        default_query={k: v for k, v in {**connection.query, **query}.items() if v is not None},
        max_retries=0,
        timeout=timeout,
        http_client=DefaultAioHttpClient(
            timeout=timeout,
            limits=Limits(max_connections=most, max_keepalive_connections=most),
            event_hooks={"request": [keys.sign]},
            follow_redirects=False,  # else the keys would follow too
        ),
    )
