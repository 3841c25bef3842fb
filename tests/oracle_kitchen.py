"""Containers of the oracle's recipes: each is made once, and handed out as copies."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from oracle_damage import Damage
from oracle_lives import Files
from oracle_read import Tree, check
from oracle_recipes import RECIPES


class Kitchen:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: dict[str, Files] = {}
        self.trees: dict[str, Tree] = {}

    def serve(self, name: str, folder: Path) -> tuple[Path, Files]:
        """-> BASE in that folder, and what is in it."""
        if name not in self.made:
            (self.folder / name).mkdir()
            self.made[name] = RECIPES[name](self.folder / name / "c")
        shutil.copytree(self.folder / name, folder, dirs_exist_ok=True)
        return folder / "c", self.made[name]

    def damage(self, name: str, folder: Path) -> Damage:
        """A copy, open for faults."""
        base, _ = self.serve(name, folder)
        if name not in self.trees:
            self.trees[name] = check(base)
        return Damage(base, self.trees[name])


@pytest.fixture(scope="session")
def kitchen(tmp_path_factory: pytest.TempPathFactory) -> Kitchen:
    return Kitchen(tmp_path_factory.mktemp("kitchen"))
