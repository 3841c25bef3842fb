"""Signatures for Azure, without a server: `make test-stores` has one."""

from __future__ import annotations

import base64
from urllib.parse import parse_qs, urlsplit

import pytest

pytest.importorskip("obstore")
from winkfs.remote import control


@pytest.fixture(autouse=True)
def account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "mine")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", base64.b64encode(b"a key").decode())


def test_a_name_with_a_space_is_signed_as_it_is() -> None:
    plain = control.sign("az://azure-box", "folder/c", 60)
    for url in (plain, control.signed_anew(plain, "azure-box/folder/c")):
        assert parse_qs(urlsplit(url).query) == parse_qs(urlsplit(plain).query)
    encoded = control.sign("az://azure-box", "a folder/ü", 60)
    assert urlsplit(encoded).path == "/azure-box/a%20folder/%C3%BC"
    again = control.signed_anew(encoded, "azure-box/a folder/ü")
    assert parse_qs(urlsplit(again).query) == parse_qs(urlsplit(encoded).query)
    assert control.signed_anew(encoded, "azure-box/a%20folder/%C3%BC") != encoded


def test_such_a_name_needs_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    url = control.sign("az://azure-box", "a folder/c", 60)
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
    with pytest.raises(control.NotSigned, match="AZURE_STORAGE_ACCOUNT_KEY"):
        control.signed_anew(url, "azure-box/a folder/c")
