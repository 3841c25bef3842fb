"""The planted bugs themselves: see mutants.py, which `make mutants` runs."""

import mutants
import pytest


@pytest.mark.slow
@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_that_of_the_code(mutant: mutants.Mutant) -> None:
    """Its lines and its test are there, wherever they move."""
    assert (mutants.ROOT / mutant.file).read_text().count(mutant.old) == 1
    file, _, test = mutant.test.partition("::")
    assert not test or f"def {test.partition('[')[0]}(" in (mutants.ROOT / file).read_text()
