"""Work on one store with the winkfs of the Python that runs this: a request in, a result out.

    {"base": PATH, "create": OPTIONS or null, "calls": [[METHOD, ARGUMENTS, OPTIONS], ...],
     "kill": bool, "read": bool}

The calls are those of a handle that is open for writing; with "kill" the process is killed behind
them, before the handle is closed. If "read", the result has "files": {name: [content, attributes]},
and "problems" of verify. If the store is refused, it has "refused": the error. Bytes are {"bytes":
text in Latin-1}.
"""

import json
import os
import signal
import sys
import warnings

import winkfs

warnings.simplefilter("error")
warnings.filterwarnings("ignore", category=DeprecationWarning)


def decode(value):
    """Return the argument that a value of the request is for."""
    return (
        value["bytes"].encode("latin-1") if isinstance(value, dict) and "bytes" in value else value
    )


def files(base):
    """Return all files as scans, look-ups, reads in bulk and listings have them: alike."""
    with winkfs.open(base) as store:
        found = {entry.name: entry.read() for entry in store.scan()}
        names = sorted(found)
        assert sorted(store.names()) == names, "a listing has other names than a scan"
        assert {name: store.read(name) for name in names} == found, "a look-up reads other bytes"
        if hasattr(store, "get_many"):
            assert list(store.get_many(names)) == [found[name] for name in names], "get_many"
        attributes = {}
        for name in names:
            pairs = store.getxattrs(name) if hasattr(store, "getxattrs") else {}
            attributes[name] = {
                key.decode(): value.decode("latin-1") for key, value in pairs.items()
            }
    return {name: [found[name].decode("latin-1"), attributes[name]] for name in names}


def work(request):
    base, calls = request["base"], request["calls"]
    if request["create"] is not None or calls:
        made = request["create"]
        store = winkfs.open(base, "a") if made is None else winkfs.create(base, **made)
        with store:
            for method, arguments, options in calls:
                if method == "put_many":
                    arguments = [[(name, decode(data)) for name, data in arguments[0]]]
                getattr(store, method)(*map(decode, arguments), **options)
            if request["kill"]:
                os.kill(os.getpid(), signal.SIGKILL)
    if not request["read"]:
        return {}
    return {"files": files(base), "problems": winkfs.verify(base).problems}


try:
    result = work(json.load(sys.stdin))
except (OSError, ValueError, TypeError, AttributeError) as error:
    result = {"refused": f"{type(error).__name__}: {error}"}
json.dump(result, sys.stdout)
