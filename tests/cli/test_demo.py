"""The demo: runs through, compares what it gets, and leaves out what the machine cannot run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from mounting import need_fuse

from scripts import demo

pytestmark = pytest.mark.slow

NO_SPARK = "no Spark in this test"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for the demo, which works in a directory of the test's own."""
    work = tmp_path / "work"
    for name, value in {"WORK": work, "BASE": work / "corpus", "TREE": work / "tree"}.items():
        monkeypatch.setattr(demo, name, value)
    monkeypatch.setattr(demo, "MOUNT", work / "mnt")
    monkeypatch.setattr(demo, "spark_missing", lambda: NO_SPARK)
    source = tmp_path / "a source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "page \u00fc.html").write_text("<p>the words</p>")
    (source / "link").symlink_to("sub")
    (source / "empty").touch()
    monkeypatch.setattr("sys.argv", ["demo", str(source)])
    return source


@pytest.mark.mount
def test_demo_runs_through_and_names_what_it_left_out(
    source: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    need_fuse()
    assert demo.main() == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert out.startswith(f"{source}: 2 files, 0.0 MB.")
    assert "winkfs umount" in out
    assert out.splitlines()[-1] == f"Left out: Spark: {NO_SPARK}"


@pytest.mark.long
def test_without_fuse_the_rest_runs(
    source: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "fuse_missing", lambda: "no FUSE in this test")
    assert demo.main() == 0
    out, _ = capfd.readouterr()
    assert "winkfs mount" not in out
    assert "winkfs reindex" in out
    assert "Left out: mount: no FUSE in this test" in out


def test_special_file_is_no_difference(source: Path) -> None:
    os.mkfifo(source / "sub" / "a fifo")
    demo.WORK.mkdir()
    demo.pack_and_unpack(source, *demo.files_below(source))
    assert not (demo.TREE / "sub" / "a fifo").exists()


def test_wrong_answer_is_one_line_and_status_1(
    source: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = demo.run

    def forgetful(*command: str | Path, **options: object) -> str:
        answer = run(*command, **options)  # type: ignore[arg-type]
        if command[1] == "unpack":
            (demo.TREE / "empty").unlink()
        return answer

    monkeypatch.setattr(demo, "run", forgetful)
    assert demo.main() == 1
    _, err = capfd.readouterr()
    assert err.startswith("demo: not the same after unpack: ")
    assert "empty" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("directory", "says"), [("nix", "no such directory"), (".", "holds"), ("/", "holds")]
)
def test_directory_that_cannot_be_taken_is_one_line(
    source: Path,
    directory: str,
    says: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.argv", ["demo", str(source.parent / directory)])
    assert demo.main() == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert says in err


def test_a_machine_without_fuse_gets_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "DEVICE", "/dev/nix")
    printed = "/dev/nix: No such file or directory (in a container: run it with --device /dev/fuse)"
    assert demo.fuse_missing() == printed
