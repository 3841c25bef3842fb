"""Mount options and the choice of the binding."""

from __future__ import annotations

import importlib.util

import pytest
from mounting import libraries

from winkmount import binding
from winkmount.options import Options, parse


def test_options_of_several_arguments_add_up() -> None:
    options = parse(["ro,uid=1000", "gid=100,umask=027", "sync_every=0.5,cache=none", "timedir"])
    assert options == Options(
        ro=True, sync_every=0.5, cache="none", timedir=True,
        fuse={"uid": "1000", "gid": "100", "umask": "27"},
    )  # fmt: skip


def test_last_word_on_an_option_counts() -> None:
    options = parse(["ro,sync_every=1,cache=none,uid=1", "rw,sync_every=2,cache=kernel,uid=2"])
    assert options == Options(sync_every=2, fuse={"uid": "2"})


def test_allow_other_never_comes_without_permission_checks() -> None:
    assert parse(["allow_other"]).fuse == {"allow_other": True, "default_permissions": True}


def test_words_for_mount_and_fstab_change_nothing() -> None:
    answer = (
        "defaults,rw,noauto,auto,user,nouser,users,_netdev,nofail,x-systemd.automount,"
        "X-mount.mkdir,comment=with = sign,user=me,exec,suid,nosuid,dev,nodev,atime,noatime,"
        "relatime,async,dirsync"
    )
    assert parse([answer, "", ",,"]) == Options() == Options(sync_every=5)
    assert parse(["noexec,sync"]) == Options(fuse={"noexec": True, "sync": True})


def test_sloppy_passes_over_the_unknown_but_not_over_nonsense() -> None:
    assert parse(["sloppy,nonsense,more=of it,ro"]) == Options(ro=True)
    with pytest.raises(ValueError, match="uid=me"):
        parse(["sloppy,uid=me"])


def test_follow_is_for_a_read_only_mount() -> None:
    assert parse(["follow,ro"]) == Options(ro=True, follow=True)
    for text in ("follow", "ro,follow,rw"):
        with pytest.raises(ValueError, match="follow: only for a read-only mount"):
            parse([text])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nonsense", "unknown mount option 'nonsense'"),
        ("ro=1", "unknown mount option 'ro=1'"),
        ("uid", "uid: a value must follow"),
        ("spin", "spin: a value must follow"),
        ("timeout=14", "timeout=14: must be 15 to 65535 seconds, or 0 for never"),
        ("read_timeout=3601", "read_timeout=3601: must be 1 to 3600 seconds, or 0 for never"),
        ("spin=10001", "spin=10001: must be 0 to 10000 microseconds"),
        ("follow=1", "unknown mount option 'follow=1'"),
        ("as_of=", "as_of: a generation or a time must follow"),
        ("ro,follow,as_of=3", "follow and as_of exclude each other"),
        ("fsname=x", "unknown mount option 'fsname=x'"),
        ("remount", "unmount it and mount it anew"),
        ("cache=disk", "cache=disk: must be one of kernel, none"),
        ("cache=", "cache=: must be one of"),
        ("uid=root", "'root' is not a number"),
        ("uid=", "'' is not a number"),
        ("uid=-1", "'-1' is not a number"),
        ("uid=4294967295", "uid=4294967295: too large"),
        ("gid=" + "9" * 5000, "too large"),
        ("umask=888", "not an octal number"),
        ("umask=1000", "at most 777"),
        ("sync_every=soon", "not a number of seconds"),
        ("sync_every=0", "more than 0"),
        ("sync_every=nan", "more than 0"),
        ("sync_every=inf", "at most 86400"),
    ],
)
def test_bad_option_is_named(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse([text])


def test_missing_library_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(binding.ENVIRONMENT, raising=False)
    libraries(monkeypatch, {})
    with pytest.raises(binding.MountError, match="apt install libfuse2"):
        binding.choose("fusepy")


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    libraries(monkeypatch, {"libfuse.so.2": 29})
    assert binding.choose("fusepy") == "fusepy"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(binding.MountError, match=r"^fusepy .*: pip install fusepy$"):
        binding.choose("fusepy")


def test_the_default_needs_no_libfuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(binding.ENVIRONMENT, raising=False)
    libraries(monkeypatch, {})
    assert binding.choose() == "kernel"


def test_environment_chooses_and_the_argument_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    libraries(monkeypatch, {"libfuse.so.2": 29})
    monkeypatch.setenv(binding.ENVIRONMENT, "fusepy")
    assert binding.choose() == "fusepy"
    assert binding.choose("kernel") == "kernel"
    monkeypatch.setenv(binding.ENVIRONMENT, "pyfuse9")
    with pytest.raises(binding.MountError, match="pyfuse9"):
        binding.choose()


def test_library_of_the_wrong_version_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    libraries(monkeypatch, {"libfuse3.so.3": 314, "libfuse.so.2": 29, "old": 29})
    monkeypatch.setenv(binding.LIBRARY_PATH, "libfuse3.so.3")
    assert binding.library() == "libfuse.so.2"
    monkeypatch.setenv(binding.LIBRARY_PATH, "old")
    assert binding.library() == "old"
