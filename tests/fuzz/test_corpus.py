"""What the fuzzer was given and what it found is read by the laws of `fuzz_targets`, in seconds."""

import fuzz_corpus
import pytest
from fuzz_targets import TARGETS


@pytest.mark.parametrize("target", TARGETS)
def test_every_kept_input_is_read_within_the_laws(target: str) -> None:
    count = 0
    for name, data in fuzz_corpus.inputs(target):
        try:
            TARGETS[target](data)
        except Exception as error:
            pytest.fail(f"{target}, input {name}: {type(error).__name__}: {error}")
        count += 1
    assert count >= 10
