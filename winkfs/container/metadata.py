"""Metadata: attributes of files and columns of the user, as a container stores them."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from winkfs.container.draft import CTIME_BYTES
from winkfs.container.ondisk.inode import Attrs, check_attrs
from winkfs.container.ondisk.typed import (
    RECORD,
    USER,
    Schema,
    Texts,
    canonical,
    pack,
    parse_schema,
    to_attributes,
)
from winkfs.entry import DEFAULT_MODES, FileType
from winkfs.errors import NotAllowed, Refusal
from winkfs.names import name_of, to_str
from winkfs.units import shown

if TYPE_CHECKING:
    from winkfs.container.store import Store


class Metadata:
    """Converts mode, owner, extended attributes and columns to the form that a container stores.

    owner  user and group of its data file, which are the defaults and not stored
    """

    def __init__(self, store: Store, owner: tuple[int, int]) -> None:
        self._store, self._owner = store, owner
        self._head = Attrs(DEFAULT_MODES[FileType.FILE], *owner).encode()

    def attrs_for(
        self,
        ftype: int,
        mode: int | None,
        uid: int | None,
        gid: int | None,
        xattrs: Mapping[bytes, bytes] | None = None,
    ) -> Attrs | None:
        """Return the attributes of a new file; None: the defaults."""
        if mode is None and uid is None and gid is None and not xattrs:
            return None
        if xattrs and not isinstance(xattrs, Mapping):
            what = f"extended attributes are a dict of names and values, not {shown(xattrs)}"
            raise TypeError(what)
        xattrs = self.typed(xattrs) if xattrs else {}
        owner = self._owner
        if (mode, uid, gid) == (DEFAULT_MODES[ftype], *owner) and not xattrs:
            return None
        return self.checked(
            Attrs(
                DEFAULT_MODES[ftype] if mode is None else mode,
                owner[0] if uid is None else uid,
                owner[1] if gid is None else gid,
                dict(xattrs),
            )
        )

    def checked(self, attrs: Attrs) -> Attrs:
        """Return attributes; raise Refusal if an entry cannot hold them; ValueError, TypeError."""
        limit = self._store.kv.layout.value.limit - CTIME_BYTES  # and a time of change
        if check_attrs(attrs).xattrs and attrs.size > limit:
            what = f"attributes of {attrs.size:,} bytes: an entry takes {limit:,}"
            raise Refusal(what, self._store.base, number=errno.E2BIG)
        return attrs

    def stored(self, key: bytes, ftype: int, attrs: Attrs) -> tuple[int, Attrs | None]:
        """Return the type of a file with these attributes, and the attributes to store, None: all
        are defaults. Raises Refusal if the container stores none."""
        if attrs.mode in (0o644, 0o755) and ftype in (FileType.FILE, FileType.EXEC):
            ftype = FileType.EXEC if attrs.mode == 0o755 else FileType.FILE
        usual = (attrs.mode, attrs.uid, attrs.gid) == (
            DEFAULT_MODES[ftype & 255],
            *self._owner,
        )
        if usual and attrs.ctime_ns is None and not attrs.xattrs:
            return ftype, None
        if not self._store.settings.attrs:
            raise Refusal(
                "the container has no ATTRS: it keeps no modes but 0644 and 0755, and no owners",
                to_str(name_of(key)), number=errno.EOPNOTSUPP,
            )  # fmt: skip
        return ftype, attrs

    # --- columns of the user ---

    def declare(self, schema: Schema) -> None:
        """Declare these columns, and no others. Raises NotAllowed if there are no attributes."""
        settings = self._store.settings
        if not settings.attrs or settings.classic:
            what = "the container has no ATTRS: it keeps no columns"
            raise NotAllowed(what, self._store.base)
        self._store.declare(schema)
        self._store.catalog.drop()  # it lacks values that files may have already

    def typed(
        self,
        xattrs: Mapping[bytes, bytes],
        before: Mapping[bytes, bytes] | None = None,
        *,
        strict: bool = False,
    ) -> Mapping[bytes, bytes]:
        """Return extended attributes as they are stored: values of columns in canonical form, with
        the record of their types. Columns in a given record are declared if no column has that
        name.

        before  the attributes that the file has; None: it is new
        strict  refuse a new value that does not have its column's type, with Refusal EINVAL;
                otherwise it stays an attribute, and the column is null
        """
        had, given = before or {}, xattrs.get(RECORD)
        if given not in (None, had.get(RECORD), self._store.declared.record):
            self._adopt(given)
        declared, found = self._store.declared, dict(xattrs)
        kinds = {USER + name.encode(): kind for name, kind in declared.schema.items()}
        there = [key for key in kinds if key in xattrs]
        for key in there:
            text = canonical(kinds[key], xattrs[key])
            if text is None and strict and xattrs[key] != had.get(key):
                shown = to_str(xattrs[key][:60])
                what = f"the column {to_str(key[len(USER) :])} is {kinds[key]}, not {shown!r}"
                raise Refusal(what, self._store.base, number=errno.EINVAL)
            found[key] = xattrs[key] if text is None else text
        return found | {RECORD: declared.record} if there else xattrs

    def _adopt(self, record: bytes) -> None:
        schema = self._store.schema
        try:
            more = parse_schema(record)
            known = {name.lower() for name in schema}
            new = {name: kind for name, kind in more.items() if name.lower() not in known}
        except ValueError:  # an attribute of another program
            return
        if new and self._store.settings.attrs:
            self.declare({**schema, **new})

    def column_attributes(self, values: Mapping[str, Any]) -> bytes:
        """Return the attribute entry of a new file with these values.

        raises  ValueError; TypeError
        """
        declared = self._store.declared
        if not isinstance(values, Mapping):
            to_attributes(declared.schema, values)
        return self._head + declared.encode(values)

    def attribute_entries(self, texts: Sequence[Texts]) -> list[bytes]:
        """Return the attribute entries of many new files, from the texts of all columns."""
        head, schema = self.column_attributes({}), self._store.schema
        return [head + word for word in pack(texts, schema)]
