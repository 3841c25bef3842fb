"""An independent writer of winkfs containers, for tests; written from the documents alone.

It works in the seed's style: inode before data, one data entry per append, inode twice as big
when it becomes too small. The whole data file is a bytearray; `close` puts superblocks around it
and builds the index. `model` is what the files must hold, kept by plain operations on bytes.
"""

import hashlib
import struct

import xxhash
from oracle_container import Container, Expected, State
from oracle_pack import CLASSIC, NEW

__all__ = ["CLASSIC", "NEW", "Expected", "Writer"]


class Writer(Container):
    """One container from operations; nothing is on the disk before `sync` or `close`."""

    # --- inodes

    def inode_value(self, state: State, size: int) -> bytes:
        stored = self.stored(state)
        if self.var("PAIROFF"):
            pairs = [struct.pack(">3q", *pair) for pair in stored]
        else:
            pairs = [struct.pack(">2q", pair[0], pair[2]) for pair in stored]
        head = (state.nexti, state.fileid, state.lsize, state.ftype, state.fmtime, len(pairs))
        covered = struct.pack(">6q", *head) + b"".join(pairs)
        if self.vars.get("CKALGO", 1) == 2:
            cksum = xxhash.xxh3_64(covered).digest()
        else:
            cksum = hashlib.md5(covered).digest()[:8]
        return (cksum + covered).ljust(size, b"\0")

    def stored(self, state: State) -> list[tuple[int, int, int]]:
        return state.changed if state.nexti else state.pairs

    def room_for(self, state: State) -> int:
        return 56 + len(self.stored(state)) * (24 if self.var("PAIROFF") else 16)

    def new_inode(self, name: bytes, state: State, size: int) -> None:
        """Append an inode of at least `size` bytes: doubled until the pairs fit."""
        while size < self.room_for(state):
            size *= 2
        state.inode_pos = self.entry(name + b"/I0", self.inode_value(state, size))
        state.inode_size = size
        self.states[name] = state
        self.every_key.append(name + b"/I0")

    def save(self, name: bytes) -> None:
        """The changed inode into its place; where it may not or is full, a new one at the end."""
        state = self.states[name]
        state.nexti = 0
        if state.inode_pos >= self.syncsize and self.room_for(state) <= state.inode_size:
            value = self.inode_value(state, state.inode_size)
            packed = self.packed(state.inode_pos, name + b"/I0", value, 0)
            self.data[state.inode_pos : state.inode_pos + len(packed)] = packed
            return
        assert not self.var("HAVEAO"), "an inode of an append-only container never moves"
        old = state.inode_pos
        self.new_inode(name, state, state.inode_size)
        self.supersede(old)

    def supersede(self, pos: int) -> None:
        if not self.var("HAVEDUPS") and self.var("KVDELFL") == 1:
            self.flag_dead(pos)

    def add_value(self, state: State, data: bytes) -> int:
        pos = self.entry(b"%x/D%d" % (state.fileid, state.number), data)
        state.number += self.number_step
        return pos

    # --- operations

    def create(self, name: bytes, mtime_ns: int = 0, ftype: int = 102, isz: int = 0) -> None:
        fmtime = mtime_ns if self.var("MTIMENS") else mtime_ns // 10**9
        state = State(self.next_fileid, ftype, fmtime, [])
        self.next_fileid += 1
        self.new_inode(name, state, isz or self.vars.get("ISZ", 128))
        self.mark_time(mtime_ns // 10**9, state.inode_pos)
        kept = mtime_ns if self.var("MTIMENS") else mtime_ns // 10**9 * 10**9
        self.model[name] = Expected(b"", ftype, kept)

    def mark_time(self, seconds: int, pos: int) -> None:
        self.last_seconds = seconds
        timemp = self.vars.get("TIMEMP", 60)
        if not self.marks or seconds >= (self.marks[-1][0] // timemp + 1) * timemp:
            self.marks.append((seconds - seconds % timemp, pos))
            self.unmarked = 0
        else:
            self.unmarked += 1

    def append(self, name: bytes, data: bytes, piece: int = 1 << 20) -> None:
        state = self.states[name]
        self.cut_pairs(state)
        for start in range(0, len(data), piece):
            part = data[start : start + piece]
            state.pairs.append((self.add_value(state, part), 0, len(part)))
            state.lsize += len(part)
            self.save(name)
        self.model[name].content += data

    def put(self, name: bytes, data: bytes, mtime_ns: int = 0, ftype: int = 102) -> None:
        """Create or replace, data entries first, as an efficient writer does."""
        old = self.states.get(name)
        fmtime = mtime_ns if self.var("MTIMENS") else mtime_ns // 10**9
        state = State(self.next_fileid, ftype, fmtime, [], len(data))
        self.next_fileid += 1
        if old is not None and self.var("HAVEAO"):
            self.delete(name)
        if data:
            state.pairs.append((self.add_value(state, data), 0, len(data)))
        self.new_inode(name, state, self.vars.get("ISZ", 128))
        self.mark_time(mtime_ns // 10**9, state.pairs[0][0] if data else state.inode_pos)
        if old is not None and not self.var("HAVEAO"):
            self.forget(old)
        kept = mtime_ns if self.var("MTIMENS") else mtime_ns // 10**9 * 10**9
        self.model[name] = Expected(data, ftype, kept)

    def forget(self, old: State) -> None:
        """delflag for an inode, then for its data entries."""
        if self.var("HAVEDUPS"):
            return
        self.flag_dead(old.inode_pos)
        front = b"%x/" % old.fileid
        for pos, key in self.log:
            if key.startswith(front) and key.count(b"/") == 1 and key[len(front) :][:1] in b"DA":
                self.flag_dead(pos)

    def delete(self, name: bytes) -> None:
        state = self.states.pop(name)
        del self.model[name]
        if self.tombstones:
            self.entry(name + b"/I0", b"", 1)
        self.forget(state)

    def rename(self, old: bytes, new: bytes) -> None:
        state = self.states.pop(old)
        self.model[new] = self.model.pop(old)
        if self.var("HAVEAO"):
            assert len(old) == len(new) and state.inode_pos >= self.syncsize
            self.states[new] = state
            self.every_key.append(new + b"/I0")
            self.save(new)
            return
        replaced = self.states.get(new)
        old_pos = state.inode_pos
        self.new_inode(new, state, state.inode_size)
        if self.tombstones:
            self.entry(old + b"/I0", b"", 1)
        self.supersede(old_pos)
        if replaced is not None:
            self.forget(replaced)

    def cut_pairs(self, state: State) -> None:
        """Cut the pairs to LSIZE, so that bytes behind it never come back."""
        left = state.lsize
        kept = []
        for pointer, skip, size in state.pairs:
            if size < 0:
                kept.append((pointer, skip, size))
            elif left > 0:
                kept.append((pointer, skip, min(size, left)))
                left -= size
        state.pairs = kept

    def truncate(self, name: bytes, size: int) -> None:
        """Shrink: only LSIZE changes. Grow: a hole where the container has them, else zeros."""
        state = self.states[name]
        gap = size - state.lsize
        self.model[name].content = self.model[name].content[:size].ljust(size, b"\0")
        if gap > 0:
            self.cut_pairs(state)
            pointer = 0 if self.var("INCOMPAT") & 4 else self.add_value(state, bytes(gap))
            state.pairs.append((pointer, 0, gap))
        state.lsize = size
        self.save(name)

    def overwrite(self, name: bytes, offset: int, data: bytes) -> None:
        """A small new entry in the middle and a split of the pairs around it (PAIROFF)."""
        assert self.var("PAIROFF")
        state = self.states[name]
        self.cut_pairs(state)
        before, after, first = [], [], 0
        for pointer, skip, size in state.pairs:
            if size < 0:
                before.append((pointer, skip, size))
                continue
            left = max(0, min(size, offset - first))
            right = max(0, min(size, first + size - offset - len(data)))
            if left > 0:
                before.append((pointer, skip, left))
            if right > 0:
                after.append((pointer, skip + size - right if pointer else 0, right))
            first += size
        state.pairs = [*before, (self.add_value(state, data), 0, len(data)), *after]
        state.lsize = max(state.lsize, offset + len(data))
        self.save(name)
        content = self.model[name].content
        self.model[name].content = content[:offset] + data + content[offset + len(data) :]

    def overwrite_above(self, name: bytes, offset: int, data: bytes) -> None:
        """The same as an inode that builds on the one before it (INCHAIN)."""
        assert self.var("INCHAIN")
        state, old = self.states[name], self.states[name].inode_pos
        named = [pair for pair in state.pairs if pair[2] < 0]
        held, end = state.lsize, offset + len(data)
        self.overwrite(name, offset, data)
        new = next(pair for pair in state.pairs if pair[0] == self.log[-2][0])
        state.changed = [*named, (-1, 0, offset), new]
        if end < held:
            state.changed.append((-1, 0, held - end))
        # Another inode in the place of the plain one that `overwrite` has written
        assert state.inode_pos != old, "an inode that others build on is never rewritten"
        pos, key = self.log.pop()
        del self.data[pos:]
        assert key == name + b"/I0"
        state.nexti = old
        self.new_inode(name, state, self.vars.get("ISZ", 128))

    def attributes(
        self, name: bytes, mode: int, uid: int, gid: int, xattrs: dict[bytes, bytes]
    ) -> None:
        state = self.states[name]
        value = struct.pack(">3q", mode, uid, gid)
        for key, data in xattrs.items():
            value += struct.pack(">H", len(key)) + key + struct.pack(">I", len(data)) + data
        old = [pair for pair in state.pairs if pair[2] < 0]
        pos = self.entry(b"%x/A0" % state.fileid, value)
        state.pairs = [(pos, 0, -len(value)), *(pair for pair in state.pairs if pair[2] >= 0)]
        self.save(name)
        for pointer, _, _ in old:
            self.flag_dead(pointer)
        before = self.model[name]
        self.model[name] = Expected(
            before.content, before.ftype, before.mtime_ns, mode, uid, gid, dict(xattrs)
        )
