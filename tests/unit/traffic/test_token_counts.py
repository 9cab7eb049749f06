"""Tokens are charged to the units they end in, and travel packed."""

from tokswarm.traffic.corpus import KINDS, PARAGRAPHS, paragraphs, parts
from tokswarm.traffic.plan import TokenFit
from tokswarm.traffic.token_counts import FINE, UnitCounts, charge, estimate, passages, tables_of


def test_a_token_counts_for_the_unit_it_ends_in() -> None:
    assert charge(["ab", " cd", " e"], [2, 5, 7]) == [1, 1, 1]
    assert charge(["ab", " cd", " e"], [1, 2, 7]) == [2, 0, 1]
    assert charge(["ab", " cd"], [3, 5]) == [0, 2]


def test_passages_hold_every_unit_of_a_kind_once_and_in_order() -> None:
    found = passages(["english", "mixed"])
    english = [unit for passage in found if passage.table == "english" for unit in passage.units]
    assert english == [unit for paragraph in paragraphs("english") for unit in paragraph]
    code = [unit for passage in found if passage.table == "code" for unit in passage.units]
    assert code == [unit for paragraph in parts("mixed")["code"] for unit in paragraph]
    assert len(parts("mixed")["code"]) < PARAGRAPHS


def test_counts_come_back_from_their_tables() -> None:
    counted = [(passage, [float(len(unit)) / 2 for unit in passage.units]) for passage in passages(KINDS)]
    tables = tables_of(counted)
    counts = UnitCounts(TokenFit(tokens_per_word=1, overhead_tokens=0, source="tokenize", tables=tables))
    units = [unit for paragraph in paragraphs("german") for unit in paragraph]
    assert list(counts.fine("german", units)) == [len(unit) * FINE // 2 for unit in units]
    assert sum(map(len, tables.values())) < 60_000, "they travel with every plan"


def test_estimates_are_of_the_right_size() -> None:
    assert estimate(" house") == 1
    assert 2 <= estimate(" Versicherungspolice") <= 5
    assert 4 <= estimate("return x[0]") <= 8
