"""Control plane: what needs credentials, the names of objects and signed URLs, by obstore.

obstore hangs for ever in a forked child whose parent has used it. There the same functions run in a
process that is executed: `python -m winkfs.remote.control`.
"""

from __future__ import annotations

import base64
import configparser
import contextlib
import datetime
import errno
import hashlib
import hmac
import json
import mimetypes
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from winkformats.disk.parts import part_bytes
from winkfs.errors import FileExists, NoSuchFile, NotAllowed, Refusal, StalePlan
from winkfs.names import MANIFESTS

SECONDS: Final = 60
COPIES: Final = ".files/"  # after the name of a container: single files of it, for browsers
NO_KEYS: Final = (
    "no credentials were found: neither in the environment, nor in a profile, nor from an instance "
    "(see docs/remote.md)"
)
PARTS: Final = 12  # of an object that are sent at a time
_CLIENT: Final[Any] = {"timeout": "30s", "connect_timeout": "10s", "allow_http": True}
_used: set[int] = set()  # processes that have used it: this one, or its parents


def call(what: str, root: str, *given: Any) -> Any:
    """Call a function of this module, in this process if that is safe. Raises OSError."""
    if _used and os.getpid() not in _used:
        return _executed(what, root, *given)
    _used.add(os.getpid())
    import obstore.exceptions as errors

    try:
        return globals()[what](root, *given)
    except FileNotFoundError:
        raise NoSuchFile("no such object or bucket", root) from None
    except errors.AlreadyExistsError:
        raise FileExists("is there already", root) from None
    except (errors.PermissionDeniedError, errors.UnauthenticatedError) as error:
        raise NotAllowed(_line(error), root, number=errno.EACCES) from None
    except errors.PreconditionError:
        raise StalePlan("was replaced since it was opened: open it again", root) from None
    except (errors.BaseError, ValueError, OSError) as error:
        if isinstance(error, Refusal):
            raise
        if "NoSuchBucket" in str(error) or "ContainerNotFound" in str(error):
            raise NoSuchFile("no such bucket", root) from None
        raise Refusal(_line(error), root) from None


def names(root: str, prefix: str) -> list[list[Any]]:
    """Return the keys that begin with a prefix, up to the next slash, with what is known of those
    that are objects: bytes, ETag, mtime."""
    import obstore

    found = obstore.list_with_delimiter(store_of(root), prefix.rstrip("/") or None)
    objects = [
        [o["path"], o["size"], _quoted(o["e_tag"] or ""), o["last_modified"].timestamp()]
        for o in found["objects"]
    ]
    return objects + [[f"{path}/"] for path in found["common_prefixes"]]


def _quoted(etag: str) -> str:
    """Return an ETag as headers have it: listings of Azure leave the quotes out."""
    return f'"{etag}"' if etag and '"' not in etag else etag


class NotSigned(Refusal):
    """The credentials cannot sign a URL; requests with them may work."""


def sign(root: str, key: str, seconds: int, method: str = "GET") -> str:
    """Return a URL from which an object can be read, or written by PUT, for some seconds.

    raises  NotSigned
    """
    import obstore

    store = store_of(root)
    if root.startswith("s3:") and os.environ.get("AWS_SKIP_SIGNATURE", "").lower() == "true":
        raise NotSigned("requests are not to be signed", root)
    try:
        url = obstore.sign(store, method, key, datetime.timedelta(seconds=seconds))  # type: ignore[call-overload]
    except Exception as error:  # of many kinds, one a store
        raise NotSigned(_line(error), root) from None
    encoded = root.startswith("az:") and "%" in urlsplit(url).path
    return signed_anew(url, f"{root.partition('://')[2]}/{key}") if encoded else url


def signed_anew(url: str, path: str) -> str:
    """Sign a URL of Azure with the path as it is: obstore takes it as it is encoded in the URL.

    path    container and key
    source  learn.microsoft.com, "Create a service SAS", versions from 2020-12-06 on
    """
    account = os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
    key = os.environ.get("AZURE_STORAGE_ACCOUNT_KEY")
    given = dict(parse_qsl(urlsplit(url).query))
    if not account or not key or "skoid" in given:
        raise NotSigned("a URL with such a name is signed with AZURE_STORAGE_ACCOUNT_KEY alone")
    fields = [given["sp"], given.get("st", ""), given["se"], f"/blob/{account}/{path}", "", "", "",
              given["sv"], given["sr"], *[""] * 7]  # fmt: skip
    mac = hmac.new(base64.b64decode(key), "\n".join(fields).encode(), hashlib.sha256)
    given["sig"] = base64.b64encode(mac.digest()).decode()
    return urlunsplit(urlsplit(url)._replace(query=urlencode(given)))


def sign_each(root: str, key: str, asked: list[list[str]], seconds: int) -> list[str]:
    """Return URLs for requests to an object of S3 or Azure, or to its bucket.

    asked  of each the method, the key again or "" for the bucket, and the query, percent-encoded
    """
    if root.startswith("az:"):  # the signature is of the object and of what is allowed
        signed = {method: sign(root, key, seconds, method) for method in ("GET", "PUT")}
        signed["HEAD"] = signed["GET"]
        return [f"{signed[method]}&{query}" for method, _, query in asked]
    whole = sign(root, key, seconds).partition("?")[0]
    bucket = whole.rsplit("/", key.count("/") + 1)[0]
    return [
        _sign_query(method, whole if place else f"{bucket}/", query, seconds)
        for method, place, query in asked
    ]


def _sign_query(method: str, address: str, query: str, seconds: int) -> str:
    """Sign a URL of S3 with a query, which obstore does not. But the address of a store may have
    one: then the path that it adds becomes the value of the last parameter, `x-id`, which S3 takes
    for a comment."""
    import obstore
    from obstore.store import S3Store

    given = {"virtual_hosted_style_request": "true", "bucket": "x"}
    config: Any = _settings() | given | {"endpoint": f"{address}?{query}&x-id="}
    store, until = (
        S3Store(config=config, client_options=_CLIENT),
        datetime.timedelta(seconds=seconds),
    )
    return obstore.sign(store, method, "winkfs", until)  # type: ignore[call-overload,no-any-return]


def ranged(root: str, key: str, start: int, length: int, etag: str) -> list[Any]:
    """Read a range where no URL can be signed -> start, the bytes in base64, and of the object
    bytes, ETag, mtime. A negative start: the last bytes."""
    import obstore

    options: Any = {"range": {"suffix": length} if start < 0 else (start, start + length)}
    if etag:
        options["if_match"] = etag
    found = obstore.get(store_of(root), key, options=options)
    data, meta = base64.b64encode(bytes(found.bytes())).decode(), found.meta
    mtime = meta["last_modified"].timestamp()
    return [found.range[0], data, meta["size"], meta["e_tag"] or "", mtime]


def head(root: str, key: str) -> list[Any] | None:
    """Return bytes, ETag and mtime of an object; None: there is none."""
    import obstore

    try:
        found = obstore.head(store_of(root), key)
    except FileNotFoundError:
        return None
    return [found["size"], found["e_tag"] or "", found["last_modified"].timestamp()]


def put(root: str, key: str, data: str, absent: bool, etag: str) -> list[Any]:
    """Write an object from base64 -> its bytes and ETag. With a condition: one request only."""
    import obstore

    mode: Any = "create" if absent else {"e_tag": etag} if etag else "overwrite"
    store = store_of(root, once=mode != "overwrite")
    given, kept = base64.b64decode(data), dict[str, str]()
    if f"/{MANIFESTS}/" in f"/{key}":  # `latest` is replaced, and vacuum empties the others
        kept = {"Cache-Control": "no-store"}
    elif COPIES in key and (kind := mimetypes.guess_type(key)[0]):
        kept = {"Content-Type": kind}
    made = obstore.put(store, key, given, mode=mode, use_multipart=False, attributes=kept)
    return [len(given), made["e_tag"] or ""]


def put_pieces(
    root: str, key: str, size: int, pieces: Iterable[bytes], progress: Callable[[int], None]
) -> list[Any]:
    """Write an object from pieces, in parts, where that cannot be continued after a kill -> its
    bytes and ETag."""
    if _used and os.getpid() not in _used:
        raise Refusal("its process was forked after its parent had used the store: start it with "
                      "spawn to write there", root)  # fmt: skip

    def counted() -> Iterator[bytes]:
        for piece in pieces:
            yield piece
            progress(len(piece))

    made = call("_put_pieces", root, key, part_bytes(size), counted())
    return [size, made["e_tag"] or ""]


def _put_pieces(root: str, key: str, part: int, pieces: Iterator[bytes]) -> Any:
    import obstore

    return obstore.put(store_of(root), key, pieces, chunk_size=part, max_concurrency=PARTS)


def delete(root: str, keys: list[str]) -> None:
    """Remove objects; missing ones are ignored."""
    import obstore

    with contextlib.suppress(FileNotFoundError):
        obstore.delete(store_of(root), keys)


@cache
def store_of(root: str, *, once: bool = False) -> Any:
    """Return the store of obstore. once: it makes no request again."""
    from obstore.store import from_url

    config: Any = _settings() if root.startswith("s3:") else {}
    retry: Any = {"max_retries": 0} if once else None
    return from_url(root, config=config, client_options=_CLIENT, retry_config=retry)


def endpoint(root: str) -> str:
    """Return the address of the store of a URL, as the settings have it."""
    env = os.environ
    if root.startswith("s3:"):
        return str(_settings().get("endpoint", "https://s3.amazonaws.com"))
    if root.startswith("gs:"):
        return "https://storage.googleapis.com"
    if env.get("AZURE_STORAGE_USE_EMULATOR", "").lower() in ("1", "true"):
        return env.get("AZURITE_BLOB_STORAGE_URL", "http://127.0.0.1:10000")
    given = env.get("AZURE_STORAGE_ENDPOINT") or env.get("AZURE_ENDPOINT")
    return given or f"https://{env.get('AZURE_STORAGE_ACCOUNT_NAME', '')}.blob.core.windows.net"


def _settings() -> dict[str, Any]:
    """Return the settings of obstore for S3."""
    env = os.environ
    config = {} if env.get("AWS_ACCESS_KEY_ID") else _profile()
    given = config.pop("endpoint_url", "")
    if place := env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL") or given:
        config["endpoint"] = place
    region = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or "us-east-1"
    config.setdefault("region", region)
    return config


def _profile() -> dict[str, Any]:
    """Return the settings of a profile of the AWS tools, which obstore does not read itself."""
    name, found = os.environ.get("AWS_PROFILE") or "default", dict[str, Any]()
    home = Path("~/.aws").expanduser()
    for file, section in (("config", f"profile {name}"), ("config", name), ("credentials", name)):
        given = os.environ.get("AWS_CONFIG_FILE" if file == "config" else
                               "AWS_SHARED_CREDENTIALS_FILE")  # fmt: skip
        parser = configparser.RawConfigParser()
        try:
            parser.read(given or home / file)
        except configparser.Error:
            continue
        if parser.has_section(section):
            found |= dict(parser.items(section))
    known = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token", "region",
             "endpoint_url")  # fmt: skip
    return {name: found[name] for name in known if name in found}


def _executed(what: str, root: str, *given: Any) -> Any:
    asked = json.dumps([what, root, *given])
    try:
        done = subprocess.run(
            [sys.executable, "-m", "winkfs.remote.control"], input=asked, capture_output=True,
            text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        answer = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        raise Refusal("the helper process that asks the store has failed", root) from None
    if "error" in answer:
        name, number, line = answer["error"]
        kinds = (FileExists, NoSuchFile, NotAllowed, NotSigned, StalePlan)
        kind = next((kind for kind in kinds if kind.__name__ == name), Refusal)
        raise kind(line, root, number=number)
    return answer["found"]


def _line(error: Exception) -> str:
    """Return the reason of an error of obstore in one line, without signatures."""
    text = " ".join(str(error).split("\n\nDebug source")[0].split())
    if "169.254.169.254" in text or "metadata.google.internal" in text:  # the last place to look
        return NO_KEYS
    if (found := re.search("<Message>(.*?)</Message>", text)) is not None:
        text = found[1]
    return re.sub(r"\?X-\S+|https?://\S+\?\S+", "...", text)[:300]


def main() -> None:
    what, root, *given = json.load(sys.stdin)
    try:
        answer: dict[str, Any] = {"found": call(what, root, *given)}
    except OSError as error:
        number, kind = error.errno or errno.EIO, type(error).__name__
        answer = {"error": [kind, number, error.strerror]}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
