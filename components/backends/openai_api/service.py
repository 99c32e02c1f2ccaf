"""Which service is asked, and with which key. Keys are in this module's objects alone."""

import base64
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from httpx2 import Limits, Request, Response, Timeout
from openai import AsyncOpenAI, DefaultAioHttpClient

from components.backends.openai_api.credentials import refuse_credentials, refuse_in_address
from pipeline.spec import SpecError, require

HIDDEN = "<key>"
LONGEST_ERROR = 1 << 20  # bytes
FRAMING = ("content-encoding", "content-length", "transfer-encoding")  # of the body on the wire
SHORT = 8  # characters; shorter keys are hidden where they stand alone


@dataclass(frozen=True, slots=True)
class Connection:
    """How a service is reached.

    `url` may hold `{endpoint}` and `{deployment}`. The key is read from the environment variable
    `key_variable` and sent in `key_header` (in `Authorization` as a bearer token). `secret_headers`
    and `secret_query` map further headers and query parameters to environment variables; those that
    are not set are left out. A `movable`
    service may have another address in the next attempt of the same run.
    """

    url: str
    key_variable: str | None = None
    key_required: bool = True
    key_header: str = "Authorization"
    headers: dict[str, str] = field(default_factory=dict)
    secret_headers: dict[str, str] = field(default_factory=dict)
    query: dict[str, str] = field(default_factory=dict)
    secret_query: dict[str, str] = field(default_factory=dict)
    movable: bool = False

    def __post_init__(self) -> None:
        """Refuse keys in the configuration, without repeating them."""
        refuse_credentials("backend.connection.headers", dict(self.headers))
        refuse_credentials("backend.connection.query", dict(self.query))
        refuse_in_address("backend.connection.url", self.url)

    def address(self, endpoint: str | None, deployment: str) -> str:
        """The base URL."""
        if "{endpoint}" in self.url and not endpoint:
            raise SpecError(
                "backend.endpoint must be the address of the service; set it, or the environment "
                "variable that conf/backend reads it from"
            )
        refuse_in_address("backend.endpoint", endpoint or "")
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
        key = _secret(connection.key_variable)
        if connection.key_required and not key:
            raise SpecError(
                f"backend={service} needs a key in the environment variable "
                f"{connection.key_variable}: export it and run again"
            )
        extra = {name: _secret(v) for name, v in connection.secret_headers.items()}
        query = {name: _secret(v) for name, v in connection.secret_query.items()}
        self._query = {name: value for name, value in query.items() if value}
        self._hidden = _pattern([key, *extra.values(), *query.values()])
        self._headers = {header: value for header, value in extra.items() if value}
        if key:
            bearer = connection.key_header.lower() == "authorization"
            self._headers[connection.key_header] = f"Bearer {key}" if bearer else key

    async def sign(self, request: Request) -> None:
        """Put the keys into the headers of a request, in place of the client's own."""
        request.headers.pop("Authorization", None)
        request.headers.update(self._headers)
        if self._query:
            request.url = request.url.copy_merge_params(self._query)

    def hide(self, text: str) -> str:
        """`text` without any key, also as JSON or Base64 would write it."""
        return self._hidden.sub(HIDDEN, text) if self._hidden else text


def _secret(variable: str | None) -> str:
    """What an environment variable holds.

    Raises:
        SpecError: no header can carry it.
    """
    value = os.environ.get(variable or "", "").strip()
    bad = [at for at, character in enumerate(value, 1) if not "!" <= character <= "~"]
    if bad:
        raise SpecError(
            f"the environment variable {variable} must hold a key of visible ASCII characters: "
            f"character {bad[0]} of {len(value)} is none; copy the key again"
        )
    return value


def _pattern(secrets: list[str]) -> re.Pattern[str] | None:
    """Finds every form of the secrets. Short ones count between other characters than letters."""
    forms: list[str] = []
    for secret in filter(None, secrets):
        coded = base64.b64encode(secret.encode()).decode().rstrip("=")
        for form in dict.fromkeys((secret, json.dumps(secret)[1:-1], coded)):
            alone = r"(?<![A-Za-z0-9])%s(?![A-Za-z0-9])" if len(secret) < SHORT else "%s"
            forms.append(alone % re.escape(form))
    return re.compile("|".join(forms)) if forms else None


class Client(DefaultAioHttpClient):
    """The official client's own HTTP client, which reads no more of an error than can be shown."""

    async def send(self, request: Request, *, stream: bool = False, **options: Any) -> Response:
        """The response; the body of a refusal is cut, decompressed, at `LONGEST_ERROR` bytes."""
        response = await super().send(request, stream=True, **options)
        if response.is_success:
            if not stream:
                await response.aread()
            return response
        body = b""
        try:
            async for chunk in response.aiter_bytes(1 << 16):
                body += chunk
                if len(body) >= LONGEST_ERROR:
                    break
        finally:
            await response.aclose()
        headers = [(n, v) for n, v in response.headers.multi_items() if n.lower() not in FRAMING]
        return Response(response.status_code, headers=headers, content=body, request=request)


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
        http_client=Client(
            timeout=timeout,
            limits=Limits(max_connections=most, max_keepalive_connections=most),
            event_hooks={"request": [keys.sign]},
            follow_redirects=False,  # else the keys would follow too
        ),
    )
