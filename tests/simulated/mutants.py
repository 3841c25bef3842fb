"""Planted bugs, each of which a named test must catch: `make mutants`.

    python tests/simulated/mutants.py [NAME ...]

A mutant is a change of a few lines in a copy of the sources. The test must pass without it and fail
with it; one that survives, or that does not apply any more, is a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
COPIED = (
    "formats", "mount", "winkfs", "pyspark_winkfs", "examples", "tests", "pyproject.toml"
)  # fmt: skip
LIMIT = 300  # seconds that a test may take
CUTS = "tests/simulated/test_power_cuts.py::test_every_image_shows_what_was_acknowledged"
STATES = "tests/simulated/test_damaged_states.py"
DAMAGE = f"{STATES}::test_damage_is_reported_and_costs_only_what_it_hits"
BITS = f"{STATES}::test_a_flipped_bit_of_the_superblocks_costs_nothing"
HIDDEN = "tests/dataset/test_dataset_hidden.py"
FINAL = "tests/container/test_failing_disk.py::test_no_later_call_succeeds"
SINGLE = "tests/simulated/test_power_cuts.py"
TORN = f"{SINGLE}::test_a_torn_second_superblock_restores_nothing_unsynced"
MADE = f"{SINGLE}::test_a_container_that_was_made_is_there"
# No image has two torn writes, which is what this order is there for.
ORDER = "tests/formats/test_kvseq.py::test_sync_writes_data_then_the_superblock_each_made_durable"
GROWING, STORE, DATAFILE = (
    "formats/winkformats/kv/sequence.py",
    "winkfs/container/store.py",
    "winkfs/container/datafile.py",
)
MESSAGES, MESSAGE_CORE, MESSAGE_RECOVERY, MESSAGE_COMPACTION = (
    "winkfs/stores/messagestore/store.py",
    "winkfs/stores/messagestore/core.py",
    "winkfs/stores/messagestore/recovery.py",
    "winkfs/stores/messagestore/compaction.py",
)
MESSAGE_CUTS = "tests/stores/test_message_power_cuts.py::test_every_image_has_what_was_acknowledged"
MESSAGE_TESTS = "tests/stores/test_message_store.py"
LOG, LOGCUTS = "winkfs/stores/logstore", "tests/stores/test_logstore_cuts.py"
LOGTEST = "tests/stores/test_logstore.py"
LOGIMAGES = f"{LOGCUTS}::test_every_image_shows_what_was_acknowledged"
RING, RINGPAGE = "winkfs/stores/ringpage", "formats/winkformats/ringpage"
RINGFORM, RINGTEST = "tests/stores/test_ring_format.py", "tests/stores/test_ring.py"
RINGCUTS = "tests/stores/test_ring_cuts.py"
RINGIMAGES = f"{RINGCUTS}::test_every_image_has_what_was_synced"
QUEUE, QUEUE_CUTS = "winkfs/stores/ledgerq", "tests/stores/test_ledgerq_cuts.py"
QUEUE_IMAGES = f"{QUEUE_CUTS}::test_every_image_has_what_was_acknowledged"
QUEUE_TESTS = "tests/stores/test_ledgerq_queue.py"
FOLDER, TRANSACTION = "winkfs/dataset/folder.py", "winkfs/dataset/transaction.py"
HISTORIES = "tests/remote/test_histories.py"
PUSH, PUSHES = "winkfs/remote/pushcontainer.py", "tests/remote/test_push.py"
REPLACE, CHANGES = "formats/winkformats/disk/storage.py", "winkfs/container/write.py"


class Mutant(NamedTuple):
    """`old`, which is there once, becomes `new` in `file`; `test` fails then."""

    name: str
    file: str
    old: str
    new: str
    test: str


MUTANTS = (
    Mutant(
        "a push without its condition", PUSH,
        "absent=like is None, like=like",
        "absent=False, like=None",
        f"{PUSHES}::test_another_push_was_faster",
    ),
    Mutant(
        "delflags of a later sync are pushed", PUSH,
        "                    self._follow()\n",
        "                    self._size = b''\n",
        f"{PUSHES}::test_what_others_write_meanwhile_is_not_seen",
    ),
    Mutant(
        "the catalogs of all states of an object have one name", "winkfs/container/ondisk/data.py",
        'own = [] if mark is None else [f"{name}.{mark & MASK64:016x}.cat"]\n',
        "own = list[str]()\n",
        f"{PUSHES}::test_readers_see_one_state_at_each_moment",
    ),
    Mutant(
        "a part that is there is believed", "formats/winkformats/disk/parts.py",
        "if there.get(number) == (len(data), sums[number].hex()):",
        "if number in there:",
        f"{PUSHES}::test_parts_of_an_earlier_state_are_sent_anew",
    ),
    Mutant(
        "a pull believes the bytes that it has", "winkfs/archive/copying.py",
        ".whole_until(start, min(target.size(), end))\n",
        ".superblock['FILESIZE']\n",
        f"{PUSHES}::test_a_pull_that_was_killed_goes_on",
    ),
    Mutant(
        "no sync of data", GROWING,
        "            yield  # a superblock must never name bytes that are not there\n",
        "",
        f"{CUTS}[plain]",
    ),
    Mutant(
        "acknowledged before the superblock is synced", GROWING,
        "                self._publish(known)\n                yield\n",
        "                self._publish(known)\n",
        f"{CUTS}[plain]",
    ),
    Mutant(
        "both superblocks written without a sync in between", GROWING,
        "                self._publish(known)\n                yield\n",
        "                self._publish(known)\n"
        "                write_second(self.storage, self.superblock)\n"
        "                yield\n",
        ORDER,
    ),
    Mutant(
        "the second superblock is not read", "formats/winkformats/kv/superblock.py",
        "        except FormatError as error:\n            with contextlib.suppress",
        "        except FormatError as error:\n            raise\n"
        "            with contextlib.suppress",
        BITS,
    ),
    Mutant(
        "what was not synced taken in where the second superblock is torn", DATAFILE,
        "    if kv.superblock.first_lost:\n",
        "    if kv.superblock.damage is not None:\n",
        TORN,
    ),
    Mutant(
        "a new container without a sync of its directory", REPLACE,
        "            directory.give(temporary, name)\n",
        "            directory.give(temporary, name)\n"
        "            storage.close()\n"
        "            return\n",
        MADE,
    ),
    Mutant(
        "a failed sync swallowed", GROWING,
        "                repeat(self.storage, self.superblock)\n            raise\n",
        "                repeat(self.storage, self.superblock)\n            self.lost = None\n",
        FINAL,
    ),
    Mutant(
        "a sync after a failed one believed", GROWING,
        "            self.lost = error\n",
        "            self._failed = True\n",
        FINAL,
    ),
    Mutant(
        "delflags before the sync", DATAFILE,
        "[pos for pos in self.pending_deletes if pos >= fixed], synced)\n",
        "self.pending_deletes, [])\n",
        f"{CUTS}[plain]",
    ),
    Mutant(
        "an index behind the data file believed to cover it", "winkfs/container/ondisk/idx.py",
        '{"DATAEND": end, **mine}',
        '{**mine, "DATAEND": end}',
        f"{CUTS}[plain]",
    ),
    Mutant(
        "an index that covers delflags which are not synced", STORE,
        'synced\n        """\n        self.kv.sync_storage()  '
        "# delflags: an index never covers what is not finished\n",
        'synced\n        """\n',
        f"{CUTS}[classic]",
    ),
    Mutant(
        "a new file renamed before it is synced", REPLACE,
        "        storage.sync()\n",
        "",
        f"{CUTS}[plain]",
    ),
    Mutant(
        "a compaction that begins file ids anew", "winkfs/container/compact.py",
        '"NEXTFID": store.nextfid}',
        '"NEXTFID": 1}',
        f"{CUTS}[plain]",
    ),
    Mutant(
        "no tombstone of the old name at a rename", CHANGES,
        "        self._account(moved, *self._append_inode(moved), over=True)\n"
        '        self._kv.append(key, b"", deleted=True)\n',
        "        self._account(moved, *self._append_inode(moved), over=True)\n",
        f"{CUTS}[plain]",
    ),
    Mutant(
        "no tombstone at a delete", CHANGES,
        '            self._kv.append(key, b"", deleted=True)\n'
        "            self._store.index.assign(key, 0, old=",
        "            self._store.index.assign(key, 0, old=",
        f"{CUTS}[plain]",
    ),
    Mutant(
        "a superblock that forgets a counter", DATAFILE,
        '        variables = {"ITOTSZ": self.itotsz, "DTOTSZ": self.dtotsz, "NEXTFID": nextfid}\n',
        '        variables = {"ITOTSZ": self.itotsz, "NEXTFID": nextfid}\n',
        f"{CUTS}[plain]",
    ),
    Mutant(
        "file ids used again", STORE,
        "        self.nextfid += 1\n",
        "        self.nextfid += not self.pending_deletes\n",
        f"{CUTS}[plain]",
    ),
    Mutant(
        "a time index that covers more than it holds", STORE,
        '            with self.deriving(".time") as storage:\n',
        "            self.times.marks[-1:] = []\n"
        '            with self.deriving(".time") as storage:\n',
        f"{CUTS}[ao]",
    ),
    Mutant(
        "the rest of a file given up behind damage", "formats/winkformats/kv/scan.py",
        "        found = _next_good(storage, layout, pos, stop)\n",
        "        found = stop\n",
        f"{DAMAGE}[plain-without derived files]",
    ),
    Mutant(
        "a manifest linked before the folder of its shards is synced",
        "winkfs/dataset/transaction.py",
        "            folder.sync()\n        root.sync()\n",
        "",
        f"{CUTS}[data set]",
    ),
    Mutant(
        "hidden rows believed by their number alone", "winkfs/dataset/hidden.py",
        '    if header["manifest"] != digest:\n',
        "    if False:\n",
        f"{HIDDEN}::test_hidden_rows_of_a_replaced_manifest_are_rejected",
    ),
    Mutant(
        "checksums of pages of the index not looked at", "formats/winkformats/kv/pagesums.py",
        "            for page in self._wrong():\n"
        "                raise self._damage(page)\n"
        "            self.good",
        "            self.good",
        f"{DAMAGE}[plain-whole]",
    ),
    Mutant(
        "a name that may not be on the disk not marked", "winkfs/container/compact.py",
        "        kv.superblock[UNNAMED] = 1\n",
        "",
        f"{SINGLE}::test_a_file_whose_name_may_not_be_durable_is_not_writable",
    ),
    Mutant(
        "a writer that does not sync its directory", DATAFILE,
        "                self.directory.sync()\n            self.kv = KVSeq.open",
        "                pass\n            self.kv = KVSeq.open",
        f"{SINGLE}::test_a_writer_makes_the_name_of_its_file_durable",
    ),
    Mutant(
        "checksums that are not bound to their container", "formats/winkformats/kv/entry.py",
        '            variables.get("CONTID", 0),\n',
        "            0,\n",
        "tests/formats/test_entry.py::test_an_entry_in_another_place_or_container_is_none",
    ),
    Mutant(
        "messages are not synced", MESSAGE_CORE,
        "[stack.enter_context(storage.duplicate()).sync for storage in dirty]\n",
        "[]\n",
        f"{MESSAGE_CUTS}[plain]",
    ),
    Mutant(
        "new segments have no durable names", MESSAGE_CORE,
        "        if self._named:\n            calls.append(self.directory.sync)\n",
        "",
        f"{MESSAGE_CUTS}[plain]",
    ),
    Mutant(
        "removals are not synced", MESSAGE_CORE,
        "            calls.append(stack.enter_context(self.journal.storage.duplicate()).sync)\n",
        "            pass\n",
        f"{MESSAGE_CUTS}[plain]",
    ),
    Mutant(
        "a segment is removed before that is durable", MESSAGE_CORE,
        "        self.sync_journal()\n        for segment in empty:\n",
        "        for segment in empty:\n",
        f"{MESSAGE_CUTS}[plain]",
    ),
    Mutant(
        "a segment that was removed may be back behind a snapshot", MESSAGE_CORE,
        "            self.directory.sync()\n            head = Snapshot(\n",
        "            head = Snapshot(\n",
        f"{MESSAGE_CUTS.partition('::')[0]}"
        "::test_removed_segments_do_not_return_behind_a_snapshot",
    ),
    Mutant(
        "a compaction does not say what it is about to do", MESSAGE_COMPACTION,
        "            core.journal.add_all(INTENT, job.segment.number, still)\n",
        "",
        f"{MESSAGE_CUTS}[plain]",
    ),
    Mutant(
        "a compaction that was interrupted is forgotten", MESSAGE_RECOVERY,
        "            state.redo[number] = ",
        "            state.redo[-1] = ",
        f"{MESSAGE_CUTS}[plain]",
    ),
    Mutant(
        "a segment is cut short before the journal says so", MESSAGE_COMPACTION,
        "            core.journal.add_all(RESET, segment.number, after)\n",
        "",
        f"{MESSAGE_CUTS}[plain]",
    ),
    Mutant(
        "what a dead process wrote is taken as durable", MESSAGE_RECOVERY,
        '        with directory.open(name, "w", follow=False) as storage:\n'
        "            storage.sync()\n    directory.sync()\n",
        "        pass\n",
        f"{MESSAGE_CUTS}[plain]",
    ),
    Mutant(
        "an id that was removed and came again is found once", MESSAGE_RECOVERY,
        "checked=True, repeated=True)",
        "checked=True)",
        f"{MESSAGE_CUTS}[plain]",
    ),
    Mutant(
        "half of a group of the journal is believed",
        "formats/winkformats/messagestore/journal.py",
        "            if len(rest) < found[at].offset or any",
        "            if any",
        f"{MESSAGE_CUTS}[v1]",
    ),
    Mutant(
        "the checksum of a message is not looked at",
        "formats/winkformats/messagestore/sqs.py",
        "if kind == MESSAGE or SUM.unpack_from(data, HEAD.size)[0] == _sum(msg_id, body):",
        "if kind >= MESSAGE:",
        f"{MESSAGE_TESTS}::test_flips_of_messages_with_checksums_are_no_wrong_bodies",
    ),
    Mutant(
        "a reader does not look whether a segment was compacted", MESSAGES,
        "            if handle is not None and segment.moved == moved:\n",
        "            if handle is not None:\n",
        f"{MESSAGE_TESTS}::test_a_message_that_moves_while_it_is_read_is_read_again",
    ),
    Mutant(
        "ring: the newest page is believed unread", f"{RINGPAGE}/page.py",
        "    while ends and not whole(ends[-1][2]):\n",
        "    while False:\n",
        f"{RINGFORM}::test_a_torn_page_behind_the_newest_is_left_out",
    ),
    Mutant(
        "ring: a torn page with the old header is believed", f"{RINGPAGE}/page.py",
        "    if after != newest and heads[after] is not None and not whole(after):\n",
        "    if False:\n",
        f"{RINGIMAGES}[synced]",
    ),
    Mutant(
        "ring: pages of an older pass are believed", f"{RINGPAGE}/page.py",
        "        if head is not None and head.turn !=",
        "        if head is not None and last.turn < 0 and head.turn !=",
        f"{RINGFORM}::test_a_page_that_was_never_written_over_is_not_the_newest",
    ),
    Mutant(
        "ring: pages of another buffer are believed", f"{RINGPAGE}/page.py",
        "            self.ring == ring\n",
        "            self.ring >= 0\n",
        f"{RINGTEST}::test_pages_of_an_older_buffer_are_none",
    ),
    Mutant(
        "ring: a record is put together from pages that do not follow", f"{RINGPAGE}/page.py",
        "self.goes_on and after.first > 0 and self.end == after.number",
        "self.goes_on and after.first > 0",
        f"{RINGIMAGES}[overwrite]",
    ),
    Mutant(
        "ring: the checksum of a page is not looked at", f"{RINGPAGE}/page.py",
        "len(raw) == page_size and Head.decode(raw).crc == checksum(raw)",
        "len(raw) == page_size and checksum(raw) >= 0",
        f"{RINGCUTS}::test_flips_and_zeros_are_reported_and_give_no_wrong_record",
    ),
    Mutant(
        "ring: a saved tail is trusted for good", f"{RING}/pages.py",
        "self.state.tail <= self.state.next == self.end",
        "self.state.tail <= self.state.next <= self.end",
        f"{RINGTEST}::test_a_saved_tail_is_not_trusted_once_a_page_has_followed",
    ),
    Mutant(
        "ring: a full buffer that refuses takes more", f"{RING}/ring.py",
        "        if self.settings.refuse:\n",
        "        if self.settings.refuse and not self._waiting:\n",
        f"{RINGTEST}::test_a_buffer_can_refuse_more",
    ),
    Mutant(
        "ring: a page is free before the record that goes on from it was popped", f"{RING}/ring.py",
        "        while self._occupied and self._occupied[0][1] <= self._tail:\n",
        "        while self._occupied and self._occupied[0][1] <= self._tail + 1:\n",
        f"{RINGIMAGES}[refuse]",
    ),
    Mutant(
        "ring: what a killed writer left is taken as durable", f"{RING}/ring.py",
        "        self._unsynced = self.writable  #",
        "        self._unsynced = False  #",
        f"{RINGCUTS}::test_a_sync_covers_what_a_killed_writer_left",
    ),
    Mutant(
        "ring: a page is not synced as it is written", f"{RING}/ring.py",
        "        if self._always:\n            self._sync()\n",
        "",
        f"{RINGIMAGES}[synced]",
    ),
    Mutant(
        "ring: records that are lost at the end are not counted", f"{RING}/ring.py",
        "            self._overwritten += self._stranded()\n",
        "",
        f"{RINGIMAGES}[overwrite]",
    ),
    Mutant(
        "ring: a record that was popped from memory is finished on the disk", f"{RING}/ring.py",
        "                self._skip = 0\n                self._passed(self._end)\n",
        "                self._passed(self._end)\n",
        f"{RINGTEST}::test_a_record_popped_from_memory_is_not_finished_on_disk",
    ),
    Mutant(
        "log store: acknowledged without a sync", f"{LOG}/log.py",
        "            self.sure(head.sync)\n",
        "",
        f"{LOGIMAGES}[power cuts]",
    ),
    Mutant(
        "log store: checksum of a commit not looked at", "formats/winkformats/logstore/entry.py",
        "        if zlib.crc32(part, self._sum if kind == COMMIT else self._seed) != checksum:\n",
        "        if False:\n",
        f"{LOGTEST}::test_a_flipped_bit_is_found_and_gives_no_wrong_body",
    ),
    Mutant(
        "log store: checksum of a record not looked at", f"{LOG}/log.py",
        "zlib.crc32(body, zlib.crc32(data[: PART.size]))",
        'int.from_bytes(data[PART.size : HEAD.size], "big")',
        f"{LOGTEST}::test_a_flipped_bit_is_found_and_gives_no_wrong_body",
    ),
    Mutant(
        "log store: a deletion dropped while an older file has the record", f"{LOG}/compact.py",
        "        if not self.is_oldest:\n",
        "        if False:\n",
        f"{LOGCUTS}::test_a_delete_stays_as_long_as_an_older_file_has_the_record",
    ),
    Mutant(
        "log store: a blob removed before it is replaced for good", f"{LOG}/transaction.py",
        "                wait = needed or one.synced > self.log.synced\n",
        "                wait = needed\n",
        f"{LOGIMAGES}[power cuts]",
    ),
    Mutant(
        "log store: a new file without a sync of the old one", f"{LOG}/log.py",
        "            self.sure(old.sync)\n",
        "",
        f"{LOGIMAGES}[power cuts]",
    ),
    Mutant(
        "log store: a new file without a sync of its name", f"{LOG}/log.py",
        "            self.sure(self.files.data.sync)\n",
        "",
        f"{LOGIMAGES}[power cuts]",
    ),
    Mutant(
        "log store: a blob without a sync of its name", f"{LOG}/transaction.py",
        "            log.sure(log.files.blob.sync)\n",
        "            pass\n",
        f"{LOGIMAGES}[power cuts]",
    ),
    Mutant(
        "log store: a generation not marked before its file", f"{LOG}/log.py",
        "                    self.sure(partial(self.files.use_generation, generation))\n",
        "",
        f"{LOGIMAGES}[power cuts]",
    ),
    Mutant(
        "log store: a saved table that knows more than is synced", f"{LOG}/log.py",
        "            self.sync(planned.written)\n",
        "",
        f"{LOGIMAGES}[power cuts]",
    ),
    Mutant(
        "log store: what a failed sync lost believed", f"{LOG}/log.py",
        "            self._take(self.files.rewrite(scan.number, scan.end), scan.number, "
        "scan.end)\n",
        '            head = self.files.data.open(f"{scan.number:016x}", "w")\n'
        "            head.truncate(scan.end)\n"
        "            self._take(head, scan.number, scan.end)\n",
        f"{LOGCUTS}::test_what_a_failed_sync_lost_is_not_built_upon",
    ),
    Mutant(
        "log store: a transaction that failed left in the log", f"{LOG}/log.py",
        "                self._undo(start, finished[0])\n",
        "                pass\n",
        f"{LOGCUTS}::test_a_full_disk_leaves_nothing_half",
    ),
    Mutant(
        "log store: files that a snapshot needs removed", f"{LOG}/transaction.py",
        "                wait = needed or",
        "                wait =",
        f"{LOGTEST}::test_a_snapshot_stays_as_it_is",
    ),
    Mutant(
        "log store: a page that changes not copied", f"{LOG}/table.py",
        "                self._save(views, np.unique(recids >> PAGE_BITS))\n",
        "                pass\n",
        f"{LOGTEST}::test_a_snapshot_stays_as_it_is",
    ),
    Mutant(
        "log store: a change under way seen by a new snapshot", f"{LOG}/table.py",
        "        view.undo = self._applying\n",
        "        view.undo = None\n",
        f"{LOGTEST}::test_a_snapshot_made_during_a_change_shows_nothing_of_it",
    ),
    Mutant(
        "log store: damage of what was synced cut off", f"{LOG}/log.py",
        "            if last and not self._proves(found, number, begin):\n",
        "            if last:\n",
        f"{LOGTEST}::test_damage_of_synced_entries_is_reported_and_not_cut_off",
    ),
    Mutant(
        "queue: messages are not synced", f"{QUEUE}/core.py",
        "            calls.append(stack.enter_context(self.tail.out.duplicate()).sync)\n",
        "            pass\n",
        f"{QUEUE_IMAGES}[fifo]",
    ),
    Mutant(
        "queue: positions are not synced", f"{QUEUE}/core.py",
        "            calls.append(stack.enter_context(journal).sync)\n",
        "            journal.close()\n",
        f"{QUEUE_IMAGES}[fifo]",
    ),
    Mutant(
        "queue: a new segment has no durable name", f"{QUEUE}/core.py",
        "            calls.append(self.directory.sync)\n",
        "            pass\n",
        f"{QUEUE_TESTS}::test_a_sync_makes_the_name_of_a_new_segment_durable",
    ),
    Mutant(
        "queue: what a dead process wrote is taken as durable", f"{QUEUE}/core.py",
        "        self._sync_found()\n        if",
        "        if",
        f"{QUEUE_IMAGES}[fifo]",
    ),
    Mutant(
        "queue: rows behind one that is torn are good again", f"{QUEUE}/state.py",
        "self._heard.size() > self._size\n",
        "self._heard.size() > self._size + 10**9\n",
        f"{QUEUE_TESTS}::test_rows_behind_one_that_is_torn_are_not_good_again",
    ),
    Mutant(
        "queue: metadata that were about to be written are forgotten", f"{QUEUE}/state.py",
        "[one for one in (self.metadata, metadata) if one is not None]",
        "[metadata]",
        f"{QUEUE_TESTS}::test_unwritten_metadata_are_not_taken_for_those_of_ledgerq",
    ),
    Mutant(
        "queue: an id that was consumed is given again", f"{QUEUE}/tail.py",
        "max(self.files.last + 1, self.next_id, *known)",
        "max(self.files.last + 1, self.next_id)",
        f"{QUEUE_TESTS}::test_an_id_that_was_consumed_is_not_given_again",
    ),
    Mutant(
        "queue: a segment goes before its messages are durably consumed", f"{QUEUE}/core.py",
        "        self._write_metadata()\n        self.sync()  # what",
        "        pass  # what",
        f"{QUEUE_TESTS}::test_what_is_removed_is_consumed_for_ledgerq_too",
    ),
    Mutant(
        "queue: a torn end is written over", f"{QUEUE}/recovery.py",
        "        storage.truncate(segment.size)\n",
        "",
        f"{QUEUE_TESTS}::test_bytes_behind_the_end_are_kept_aside",
    ),
    Mutant(
        "queue: the lease of a message does not hold its segment", f"{QUEUE}/cursor.py",
        "return min(*self.at, *self.leased) if self.leased else min(self.at)",
        "return min(self.at)",
        f"{QUEUE_IMAGES}[fifo]",
    ),
    Mutant(
        "queue: ids that are lost are gaps for LedgerQ", f"{QUEUE}/recovery.py",
        "    if not last or not 1 < next - last <= GAP_IDS + 1:\n",
        "    if True:\n",
        f"{QUEUE_TESTS}::test_a_flip_in_a_closed_segment_is_skipped_and_repaired",
    ),
    Mutant(
        "queue: others do not hear of a new segment", f"{QUEUE}/state.py",
        "        self.append().add(ondisk.FILES)\n",
        "",
        f"{QUEUE_TESTS}::test_several_share_a_queue",
    ),
    Mutant(
        "queue: rows of an index are believed", f"{QUEUE}/reading.py",
        "            if (found, timestamp) == (id, sparse.times[at]):\n",
        "            if True:\n",
        f"{QUEUE_TESTS}::test_a_flip_of_an_index_does_not_hide_messages",
    ),
    Mutant(
        "queue: the checksum of an entry is not looked at",
        "formats/winkformats/ledgerq/segment.py",
        "                and checksum(data[at:stop]) == RESIDUE\n",
        "",
        "tests/formats/test_ledgerq.py::test_every_flipped_bit_of_an_entry_costs_that_entry_alone",
    ),
    Mutant(
        "an answer that is lost counts as another's commit", FOLDER,
        "                if job_of(found) != job:\n",
        "                if found is not data:\n",
        HISTORIES,
    ),
    Mutant(
        "a manifest is put without a condition", FOLDER,
        "self.files.put(name, data, absent=SINGLE_WRITER not in os.environ)",
        "self.files.put(name, data)",
        HISTORIES,
    ),
    Mutant(
        "a later manifest is not looked at", FOLDER,
        "            if self.stored(number) is not None:\n                return False\n",
        "",
        HISTORIES,
    ),
    Mutant(
        "vacuum takes jobs that can be committed", "winkfs/dataset/farmaintain.py",
        "        if base >= oldest:\n",
        "        if base > 1 << 60:\n",
        HISTORIES,
    ),
    Mutant(
        "a job that vacuum may take is committed", TRANSACTION,
        "            if self.far and before.oldest > self.base_generation:",
        "            if False:",
        HISTORIES,
    ),
    Mutant(
        "a commit that landed late is not looked for", TRANSACTION,
        "                if settled is not None:\n",
        "                if False:\n",
        HISTORIES,
    ),
    Mutant(
        "what vacuum has emptied counts as not committed", FOLDER,
        '            if data == b"":\n',
        "            if False:\n",
        "tests/remote/test_far_dataset.py::test_vacuum_that_was_faster_than_an_answer",
    ),
)  # fmt: skip


def run_test(tree: Path, test: str) -> tuple[bool, float]:
    """-> whether it passes, seconds."""
    started = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--all", test]
    try:
        done = subprocess.run(
            command, cwd=tree, capture_output=True, timeout=LIMIT, text=True,
            env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise SystemExit(f"{test}: takes more than {LIMIT} s") from None
    if done.returncode not in (0, 1):
        raise SystemExit(f"{test}: pytest says {done.returncode}\n{done.stdout[-2000:]}")
    return done.returncode == 0, time.monotonic() - started


def copy_to(folder: Path) -> Path:
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.pyc"))
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def survives(mutant: Mutant) -> str:
    """-> what is wrong with it, "" where its test catches it."""
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_to(Path(folder))
        path = tree / mutant.file
        text = path.read_text()
        if text.count(mutant.old) != 1:
            return f"does not apply: the lines are in {mutant.file} {text.count(mutant.old)} times"
        path.write_text(text.replace(mutant.old, mutant.new))
        passed, took = run_test(tree, mutant.test)
    verdict = "SURVIVES" if passed else "caught"
    print(f"{verdict:9}{took:5.0f} s  {mutant.name:55}{mutant.test.split('/')[-1]}", flush=True)
    return "survives" if passed else ""


def main() -> None:
    chosen = [m for m in MUTANTS if not sys.argv[1:] or m.name in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_to(Path(folder))
        for test in sorted({mutant.test for mutant in chosen}):
            passed, took = run_test(tree, test)
            print(f"{'passes' if passed else 'FAILS':9}{took:5.0f} s  {test}", flush=True)
            if not passed:
                sys.exit("a test that fails in a copy without a mutant catches none")
    with ThreadPoolExecutor(2) as pool:
        wrong = [(m.name, what) for m, what in zip(chosen, pool.map(survives, chosen), strict=True)]
    bad = [f"{name}: {what}" for name, what in wrong if what]
    print(f"{len(chosen) - len(bad)} passed, {len(bad)} failed")
    if bad:
        sys.exit("\n".join(bad))


if __name__ == "__main__":
    main()
