"""Prompts are counted by the best way there is, and the run is told by which."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tokswarm.errors import ConfigError
from tokswarm.master.calibration import (
    LONG_WORDS,
    SHORT_WORDS,
    Calibration,
    Probed,
    calibrate,
    probe_words,
)
from tokswarm.traffic.corpus import KINDS
from tokswarm.traffic.prompt import PromptWriter

TEMPLATE = 9
"""What the endpoint of these tests adds to each prompt."""


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE that learned from something else than our texts: the code and words of this package's tests."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    texts = [path.read_text() for path in sorted(Path(__file__).parents[1].rglob("*.py"))[:80]]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=4000, initial_alphabet=alphabet, show_progress=False))
    path = tmp_path_factory.mktemp("model") / "tokenizer.json"
    bpe.save(str(path))
    return path


class Endpoint:
    """Charges as its tokenizer and a template say."""

    def __init__(self, file: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(file))
        self.most = 100_000
        self.asked = 0

    def ends(self, text: str) -> list[int]:
        return [end for _, end in self.tokenizer.encode(text, add_special_tokens=False).offsets]

    def usage(self, text: str) -> int | None:
        self.asked += 1
        tokens = len(self.ends(text)) + TEMPLATE
        return tokens if tokens <= self.most else None

    def probed(self) -> Probed:
        short, long = probe_words(SHORT_WORDS), probe_words(LONG_WORDS)
        return Probed(short, long, self.usage(short), self.usage(long))

    def errors(self, found: Calibration, kind: str, tokens: int) -> list[float]:
        writer = PromptWriter(found.fit, 3, kind)
        texts = (json.loads(b'"%s"' % writer.unique(tokens, (0, key))) for key in range(30))
        return [(len(self.ends(text)) + TEMPLATE) / tokens - 1 for text in texts]


NOTHING = Probed("", "", None, None)


@pytest.mark.parametrize("way", ["tokenizer", "tokenize"])
@pytest.mark.parametrize("tokens", [50, 500, 4000])
def test_counted_prompts_are_within_two_percent_and_each_within_five(
    tokenizer_file: Path, way: str, tokens: int
) -> None:
    endpoint = Endpoint(tokenizer_file)
    found = calibrate(
        KINDS,
        endpoint.probed(),
        usage=endpoint.usage,
        server=endpoint.ends if way == "tokenize" else None,
        tokenizer=str(tokenizer_file.parent) if way == "tokenizer" else None,
    )
    assert found.fit.source == way
    assert found.fit.overhead_tokens == TEMPLATE
    assert found.notes[-1].startswith("prompt lengths are counted by ")
    for kind in KINDS:
        errors = endpoint.errors(found, kind, tokens)
        assert sum(map(abs, errors)) / len(errors) <= 0.02
        assert max(map(abs, errors)) <= 0.05


def test_probes_calibrate_every_kind_where_no_tokenizer_is(tokenizer_file: Path) -> None:
    endpoint = Endpoint(tokenizer_file)
    found = calibrate(KINDS, endpoint.probed(), usage=endpoint.usage, server=None, tokenizer=None)
    assert found.fit.source == "usage"
    assert "a target.tokenizer makes them exact" in found.notes[-1]
    assert endpoint.asked <= 12
    for kind in KINDS:
        errors = endpoint.errors(found, kind, 4000)
        assert abs(sum(errors) / len(errors)) <= 0.05


def test_a_probe_that_is_too_long_is_tried_shorter(tokenizer_file: Path) -> None:
    endpoint = Endpoint(tokenizer_file)
    endpoint.most = 1200
    found = calibrate(["chinese"], endpoint.probed(), usage=endpoint.usage, server=None, tokenizer=None)
    assert abs(sum(endpoint.errors(found, "chinese", 4000)) / 30) <= 0.06


def test_a_tokenizer_that_is_not_the_endpoints_is_not_used(tokenizer_file: Path) -> None:
    endpoint = Endpoint(tokenizer_file)
    short, long, *_ = endpoint.probed()
    other = Probed(short, long, 20, 230)
    found = calibrate(["words"], other, usage=lambda text: 1, server=endpoint.ends, tokenizer=None)
    assert found.fit.source == "usage"
    assert "apart: it is not used" in found.notes[0]


def test_an_endpoint_that_says_nothing_gets_estimates_and_a_note() -> None:
    found = calibrate(["english"], NOTHING, usage=lambda text: None, server=None, tokenizer=None)
    assert found.fit.source == "assumed"
    assert "prompt lengths are estimates" in found.notes[-1]


def test_a_tokenizer_that_cannot_be_read_is_a_mistake_of_the_mix(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="no tokenizer that the package"):
        calibrate([], NOTHING, usage=lambda text: None, server=None, tokenizer=str(tmp_path))
    with pytest.raises(ConfigError, match="no such file on the master"):
        calibrate([], NOTHING, usage=lambda text: None, server=None, tokenizer=str(tmp_path / "none"))
