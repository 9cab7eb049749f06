"""`tokswarm sim`: the simulated endpoint from the command line."""

import logging
import sys
from pathlib import Path

import click

from tokswarm.errors import TokswarmError
from tokswarm.simulator.deployment import DEFAULT_MODEL, deployment_presets, load_deployment
from tokswarm.simulator.fault_gate import FaultShare
from tokswarm.simulator.profile import PRESETS
from tokswarm.simulator.server import SimSettings, run

_EPILOG = """\b
Profiles, one server each:
{profiles}

\b
Deployments, several servers or providers:
{deployments}

\b
Examples:
  tokswarm sim
  tokswarm sim --port 0 --profile tight
  tokswarm sim --profile my-server.yaml --model my-model
  tokswarm sim --profile elastic
  tokswarm sim --profile side-by-side     # one endpoint, two models
  SIM_KEY=secret tokswarm sim --api-key env:SIM_KEY
  tokswarm sim --requests-per-minute 300 --tokens-per-minute 60000
  tokswarm sim --fault reset=5 0.05 --fault status=503 0.01

\b
Try it:
  curl -N http://127.0.0.1:8100/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model":"tiny","stream":true,"max_tokens":20,"messages":[{{"role":"user","content":"hello"}}]}}'
"""


def command() -> click.Command:
    """The command `sim`, to be mounted or run alone."""
    profiles = "\n".join(f"  {profile.name:12} {profile.description}" for profile in PRESETS.values())
    loaded = [load_deployment(name) for name in deployment_presets()]
    deployments = "\n".join(f"  {deployment.name:12} {deployment.description}" for deployment in loaded)

    @click.command("sim", epilog=_EPILOG.format(profiles=profiles, deployments=deployments))
    @click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
    @click.option(
        "--port", type=click.IntRange(0, 65535), default=8100, show_default=True, help="Port; 0 takes a free one."
    )
    @click.option(
        "--profile",
        "source",
        default="demo",
        show_default=True,
        help="A preset, or a YAML file of a profile or a deployment.",
    )
    @click.option(
        "--model",
        help=f"Name of the model it serves; `{DEFAULT_MODEL}` unless given. A deployment may name its models itself.",
    )
    @click.option("--api-key", metavar="REF", help="Ask for this key: env:NAME or file:PATH.")
    @click.option("--seed", type=int, default=1, show_default=True, help="Decides lengths and words of the answers.")
    @click.option(
        "--port-file", type=click.Path(dir_okay=False, path_type=Path), help="Write the port here once it is open."
    )
    @click.option("--requests-per-minute", type=float, help="Rate limit of each model's first provider.")
    @click.option("--tokens-per-minute", type=float, help="The same in tokens, of prompts and the most of answers.")
    @click.option(
        "--fault",
        "faults",
        type=(str, float),
        multiple=True,
        metavar="FAULT SHARE",
        help="Let a share of the answers, 0 to 1, go wrong: kind[=argument][,kind...]; may be given several times.",
    )
    def sim(
        *,
        host: str,
        port: int,
        source: str,
        model: str | None,
        api_key: str | None,
        seed: int,
        port_file: Path | None,
        requests_per_minute: float | None,
        tokens_per_minute: float | None,
        faults: tuple[tuple[str, float], ...],
    ) -> None:
        """Serve a simulated OpenAI-compatible endpoint: batching queues with finite KV caches."""
        logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
        # The line before does nothing where the whole command has set up logging already, for warnings only.
        logging.getLogger("tokswarm.simulator").setLevel(logging.INFO)
        deployment = load_deployment(source, model=model).with_rates(requests_per_minute, tokens_per_minute)
        settings = SimSettings(
            host=host,
            port=port,
            deployment=deployment.with_faults([FaultShare(fault=fault, share=share) for fault, share in faults]),
            api_key=api_key,
            seed=seed,
            port_file=port_file,
        )
        run(settings)

    return sim


def main() -> None:
    """Run the command alone: `python -m tokswarm.simulator`."""
    try:
        command()(prog_name="python -m tokswarm.simulator")
    except TokswarmError as error:
        click.echo(f"error: {error}", err=True)
        if error.hint:
            click.echo(f"hint: {error.hint}", err=True)
        sys.exit(error.exit_code)
