import subprocess
import sys


def test_publishing_needs_no_board_building_sdk() -> None:
    code = (
        "import sys; sys.modules['grafana_foundation_sdk'] = None\n"
        "from tokswarm.commands.grafana import shipped_boards\n"
        "print(len(shipped_boards()))"
    )
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (outcome.stdout.strip(), outcome.stderr) == ("8", "")
