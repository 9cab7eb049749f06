"""Loaded by LiteLLM's proxy: writes down each request as LiteLLM itself accounts for it, one JSON object a line."""

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

from litellm.integrations.custom_logger import CustomLogger


class Counter(CustomLogger):
    """LiteLLM calls these for each request, after it was answered."""

    async def async_log_success_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: datetime, end_time: datetime
    ) -> None:
        self._write("ok", kwargs, start_time, end_time)

    async def async_log_failure_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: datetime, end_time: datetime
    ) -> None:
        self._write("failed", kwargs, start_time, end_time)

    def _write(self, outcome: str, kwargs: dict[str, Any], start_time: datetime, end_time: datetime) -> None:
        account = kwargs["standard_logging_object"]
        line = {
            "outcome": outcome,
            "model": account["model_group"],
            "prompt_tokens": account["prompt_tokens"],
            "output_tokens": account["completion_tokens"],
            "begun_unix_ns": round(start_time.timestamp() * 1e9),
            "ended_unix_ns": round(end_time.timestamp() * 1e9),
        }
        with Path(os.environ["LITELLM_COUNTS"]).open("a", encoding="utf-8") as counts:
            counts.write(json.dumps(line) + "\n")


counter = Counter()
