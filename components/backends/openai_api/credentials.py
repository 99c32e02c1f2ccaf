"""What looks like a credential in a configuration, which files would repeat."""

import re
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import urlsplit

from pipeline.spec import SpecError

WORDS = {
    *("key", "keys", "apikey", "token", "secret", "auth", "authorization", "authentication"),
    *("password", "passwd", "pwd", "signature", "sig", "credential", "credentials", "cookie"),
    *("bearer", "jwt", "sas"),
}
ENDINGS = ("apikey", "accesskey", "token", "secret", "password", "signature")
NO_CREDENTIALS = ("prompt_cache_key", "stop_token", "eos_token", "bos_token", "pad_token")
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
VALUE = re.compile(
    r"(?:bearer|basic) \S|(?:sk|pk|rk)-\w|(?:gsk|hf|ghp|xai)_\w|AIza\w|eyJ[\w-]+\.", re.I
)


def refuse_credentials(setting: str, value: object) -> None:
    """Refuse a setting in which anything looks like a credential, without repeating it.

    Raises:
        SpecError: it does; the message names the place.
    """
    for place in _credentials(setting, value):
        raise SpecError(
            f"{place} must hold no key: it would be written into the files of the run. Keys come "
            "from environment variables: backend.connection.key_variable names that of the key, "
            "secret_headers and secret_query those of further headers and query parameters"
        )


def _credentials(place: str, value: object) -> Iterator[str]:
    """The places in a nested value that hold what looks like a credential."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            inside = f"{place}.{name}"
            if isinstance(inner, str) and inner and names_credential(str(name)):
                yield inside
            else:
                yield from _credentials(inside, inner)
    elif isinstance(value, str):
        if VALUE.match(value):
            yield place
    elif isinstance(value, Sequence):
        for inner in value:
            yield from _credentials(place, inner)


def names_credential(name: str) -> bool:
    """Whether a header, a parameter or a field of this name holds a credential."""
    if name in NO_CREDENTIALS:
        return False
    words = [word.lower() for word in WORD.findall(name)]
    return any(word in WORDS or word.endswith(ENDINGS) for word in words)


def refuse_in_address(setting: str, address: str) -> None:
    """Refuse an address with a password or a query in it, without repeating it.

    Raises:
        SpecError: it has one, or it is no address.
    """
    try:
        parts = urlsplit(address)
        has_user = parts.username is not None
        _ = parts.port  # raises where it is no number
    except ValueError:
        raise SpecError(f"{setting} must be an address such as https://host/v1") from None
    if has_user:
        raise SpecError(
            f"{setting} must hold no user name or password (user:password@host): a key comes from "
            "the environment variable that backend.connection.key_variable names"
        )
    if parts.query or parts.fragment:
        raise SpecError(
            f"{setting} must hold nothing behind a ? or #: parameters go into "
            "backend.connection.query, and those that are keys into secret_query, with the name of "
            "an environment variable each"
        )
