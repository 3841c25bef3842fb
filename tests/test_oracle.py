from pathlib import Path

import pytest
from oracle_read import Tree, check, unpack
from oracle_recipes import OPTIONS, RECIPES
from oracle_write import Expected


def assert_holds(tree: Tree, expected: dict[bytes, Expected]) -> None:
    assert set(tree.files) == set(expected)
    for name, file in tree.files.items():
        wanted = expected[name]
        found = Expected(
            file.content, file.ftype, file.mtime_ns, file.mode, file.uid, file.gid, file.xattrs
        )
        assert found == wanted, name


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_passes_the_check_and_holds_its_files(name: str, tmp_path: Path) -> None:
    base = tmp_path / "c"
    expected = RECIPES[name](base)
    tree = check(base, **OPTIONS[name])
    assert_holds(tree, expected)
    unpack(tree, tmp_path / "out")
