"""A scripted flow in plain Locust style: a shopper who asks, thinks and asks again.

tokswarm sim &
locust -f shopper.py --host http://127.0.0.1:8100/v1 --headless -u 5 -r 5 -t 20s
"""

from locust import between, task

from tokswarm.user import LLMUser


class Shopper(LLMUser):
    """Two turns; the second carries the first, so a prefix cache can help."""

    model = "tiny"
    wait_time = between(0.1, 0.5)

    @task
    def shop(self) -> None:
        """Ask, then refine."""
        reply = self.llm.chat([{"role": "user", "content": "What fits a rainy day?"}], max_tokens=20, name="ask")
        if reply.ok:
            self.llm.chat([*reply.messages, {"role": "user", "content": "And cheaper?"}], max_tokens=20, name="refine")
