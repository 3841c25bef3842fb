"""The container under the oracle's writer: entries in a bytearray, and the files made of them."""

import struct
from dataclasses import dataclass, field
from pathlib import Path

import xxhash
from oracle_check import catalog_rows, read_data
from oracle_pack import pack_catalog, pack_hindex, pack_string, pack_superblock

SYNCTIME = 1_700_000_000


@dataclass
class Expected:
    """What a file must hold when it is read again."""

    content: bytes
    ftype: int
    mtime_ns: int
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    xattrs: dict[bytes, bytes] = field(default_factory=dict)


@dataclass
class State:
    """A live file as the writer knows it. Pairs are (pointer, skip, size)."""

    fileid: int
    ftype: int
    fmtime: int
    pairs: list[tuple[int, int, int]]
    lsize: int = 0
    inode_pos: int = 0
    inode_size: int = 0
    number: int = 0  # the next D<n>
    nexti: int = 0  # of an inode that builds on an older one, and
    changed: list[tuple[int, int, int]] = field(default_factory=list)  # its pairs


class Container:
    """Entries in memory, and what the files of the container say about them."""

    def __init__(self, base: Path, variables: dict[str, int], sbsize: int = 4096) -> None:
        self.base = base
        self.vars = dict(variables)
        self.sbsize = sbsize
        self.data = bytearray(sbsize)
        self.states: dict[bytes, State] = {}
        self.model: dict[bytes, Expected] = {}
        self.every_key: list[bytes] = []  # inode keys ever used, for the deleted cells
        self.log: list[tuple[int, bytes]] = []  # (position, key) of every entry
        self.dead = 0
        self.syncsize = sbsize
        self.next_fileid = 1
        self.marks: list[tuple[int, int]] = []
        self.unmarked = 0
        self.last_seconds = 0
        self.tombstones = True  # False: delete as the seed has it, by delflags alone
        self.ghosts = False  # True: keys of deleted files leave HTDEL cells in the index
        self.htsize = 0  # 0: about twice the number of keys
        self.sync_state: dict[str, int] = {}
        self.number_step = 1  # gaps between D<n>

    def var(self, name: str) -> int:
        return self.vars.get(name, 0)

    # --- kvseq

    def entry(self, key: bytes, value: bytes, delflag: int = 0) -> int:
        """Append any entry; its position."""
        while self.var("ALIGN") and len(self.data) % self.var("ALIGN"):
            self.data.append(0)
        pos = len(self.data)
        self.data += self.packed(pos, key, value, delflag)
        self.log.append((pos, key))
        self.dead += delflag
        return pos

    def packed(self, pos: int, key: bytes, value: bytes, delflag: int) -> bytes:
        body = pack_string(key, self.var("KEYREPR")) + pack_string(value, self.var("VALREPR"))
        if self.var("KVCKSUM"):
            seed = (self.var("CONTID") + pos) % 2**64
            body += xxhash.xxh3_64(body, seed=seed).digest()[-4:]
        if self.var("KVDELFL") == 1:
            return bytes([delflag]) + body
        assert delflag == 0
        return body

    def flag_dead(self, pos: int) -> None:
        assert self.var("KVDELFL") == 1
        if self.data[pos] == 0:
            self.data[pos] = 1
            self.dead += 1

    # --- files

    def path(self, suffix: str) -> Path:
        return self.base.with_name(self.base.name + suffix)

    def counters(self) -> dict[str, int]:
        states = self.states.values()
        numbers = {
            "ENTRIES": len(self.log),
            "AENTRIES": len(self.log) - self.dead,
            "ITOTSZ": sum(state.inode_size for state in states),
            "DTOTSZ": sum(state.lsize for state in states),
        }
        if "NEXTFID" in self.vars:
            numbers["NEXTFID"] = self.next_fileid
        return numbers

    def sync(self) -> None:
        """All files on the disk as after a clean close."""
        self.syncsize = len(self.data)
        self.sync_state = self.counters()
        self.write_data()
        self.write_index()
        if self.var("HAVEAO"):
            self.write_time()

    close = sync

    def write_data(self) -> None:
        """The data file as it is now; SYNCSIZE and counters as of the last `sync`."""
        sizes = {"FILESIZE": len(self.data), "FILEINCR": 4194304, "SYNCSIZE": self.syncsize}
        variables = {"SBSIZE": self.sbsize, "FORMAT": 0x10, "PURPOSE": 0}
        variables |= sizes | {"SYNCTIME": SYNCTIME} | self.vars | self.sync_state
        block = pack_superblock(variables, b"FSYSDATA", "SBCKSUM" in self.vars)
        self.path(".data").write_bytes(block + self.data[self.sbsize :])

    def derived(self, file_format: int) -> dict[str, int]:
        variables = {"SBSIZE": self.sbsize, "FORMAT": file_format, "PURPOSE": 0, "FILESIZE": 0}
        variables["SYNCTIME"] = SYNCTIME
        if "CONTID" in self.vars:
            variables |= {"CONTID": self.var("CONTID"), "DATAEND": len(self.data), "SBCKSUM": 0}
        return variables

    def write_index(self) -> None:
        live = {name + b"/I0": state.inode_pos for name, state in self.states.items()}
        inserted = list(dict.fromkeys(self.every_key))
        keys = [(key, live.get(key)) for key in inserted if self.ghosts or key in live]
        variables = self.derived(0x20)
        for name in ("HTALGO", "CELLSZ", "HTFREE", "HTDEL"):
            if name in self.vars:
                variables[name] = self.vars[name]
        variables["HTSIZE"] = self.htsize or 2 * len(keys) + 3
        self.path(".idx").write_bytes(pack_hindex(variables, b"FSYSIDX", keys, user=7))

    def write_time(self) -> None:
        variables = self.derived(0x10) | {"KEYREPR": 12, "VALREPR": 12}
        variables |= {"TIMEMP": self.vars.get("TIMEMP", 60), "TIMEMN": self.unmarked}
        count = len(self.marks)
        variables |= {"ENTRIES": count, "AENTRIES": count, "LASTMT": self.last_seconds}
        variables["TIMEMARK"] = self.marks[-1][0] if self.marks else 0
        variables["FILESIZE"] = self.sbsize + 16 * count
        block = pack_superblock(variables, b"FSYSTIME", "SBCKSUM" in variables)
        block += b"".join(struct.pack(">2q", *mark) for mark in self.marks)
        self.path(".time").write_bytes(block)

    def write_catalog(self) -> None:
        rows = catalog_rows(read_data(self.path(".data")))
        self.path(".cat").write_bytes(pack_catalog(self.derived(0x10), rows))
