"""Prompts as lists of token ids have the asked length to the token, by the server's own count."""

from pathlib import Path

import product
from endpoints import simulator


def test_the_server_counts_the_tokens_that_were_asked_for(tmp_path: Path) -> None:
    with simulator() as base_url:
        mix = product.write_mix(
            tmp_path / "ids.yaml",
            base_url,
            target={"base_url": base_url, "api": "completions", "prompt_format": "token_ids"},
            classes=[
                {
                    "name": "ids",
                    "prompt": {"tokens": {"uniform": {"low": 1, "high": 600}}},
                    "output": {"max_tokens": {"fixed": 4}, "ignore_eos": True},
                }
            ],
            load=[{"concurrency": 4, "for": "2s", "drain": "5s"}],
        )
        run = product.run_mix(mix, tmp_path / "data", workers=1)
    lengths = [(record.prompt_tokens_planned, record.prompt_tokens) for record in run.records()]
    assert len(lengths) > 20
    assert all(planned == counted for planned, counted in lengths)
    assert run.run_file["fit"]["source"] == "token_ids"
