"""The demo of object storage runs through, and compares what it gets."""

from __future__ import annotations

from pathlib import Path

import pytest
from marks import only_with
from mounting import need_fuse

only_with("moto")
pytestmark = [pytest.mark.slow, pytest.mark.mount, pytest.mark.long]


def test_the_demo_runs_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from scripts import demo_remote

    need_fuse()
    source, work = tmp_path / "a source", tmp_path / "work"
    (source / "sub").mkdir(parents=True)
    (source / "sub/page \u00fc.html").write_text("<p>the words</p>" * 900)
    (source / "link").symlink_to("sub")
    (source / "empty").touch()
    for name, last in (("BASE", "corpus"), ("TREE", "tree"), ("MOUNT", "mnt"), ("COPY", "copy")):
        monkeypatch.setattr(demo_remote, name, work / last)
    monkeypatch.setattr(demo_remote, "WORK", work)
    monkeypatch.setattr(demo_remote, "spark_missing", lambda: "no Spark in this test")
    monkeypatch.setattr("sys.argv", ["demo", str(source)])
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION",
                 "NO_PROXY", "no_proxy"):  # fmt: skip
        monkeypatch.setenv(name, "restored by the test")
    assert demo_remote.main() == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert out.splitlines()[-1] == "Left out: Spark: no Spark in this test"
