"""The tests of the sink in a folder, on object storage."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fnmatch import fnmatch
from types import SimpleNamespace

import pytest
import test_spark_write as tests
from buckets import s3, trust

from winkfs.dataset.folder import far_files

pytestmark = [pytest.mark.spark, pytest.mark.long]
FOLDERS = (  # of what is left on a disk, or of the page cache
    "test_an_attempt_that_lives_on_after_the_commit_cannot_write",
    "test_what_losing_attempts_wrote_is_swept", "test_a_full_disk_fails_the_task",
    "test_the_page_cache_stays_clean", "test_a_wrong_option_is_reported_in_one_line",
    "test_the_catalog_is_written_from_what_the_writer_knows",
)  # fmt: skip
globals().update({
    name: test for name, test in vars(tests).items()
    if name.startswith("test_") and not name.startswith(FOLDERS)
})  # fmt: skip
_numbers = itertools.count()


class Url(str):
    """A URL, as far as these tests take it for a path."""

    def glob(self, pattern: str) -> Iterator[Url]:
        files = far_files(self)
        for job in files.list():
            for name in files.subdirectory(job).list():
                if fnmatch(f"{job}/{name}", pattern):
                    yield self / f"{job}/{name}"

    def __truediv__(self, name: str) -> Url:
        return Url(f"{self}{'/' if '/' in name else '-'}{name}")  # beside it, not within

    def rglob(self, pattern: str) -> Iterator[Url]:
        return iter(())  # hidden files of this machine

    def stat(self) -> SimpleNamespace:
        folder, _, name = self.rpartition("/")
        known = far_files(folder).known(name)
        assert known is not None
        return SimpleNamespace(st_size=known.size)


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3() as url:
        yield url


@pytest.fixture
def root(bucket: str) -> Url:
    made = Url(trust(f"{bucket}/sink{next(_numbers)}"))
    trust(made / "raw")
    return made
