"""The command line, as a user runs it: every command, text and --json, and how it fails."""
import json
import subprocess
import sys
from pathlib import Path

import pytest

MODEL = str(Path(__file__).parent / "fixtures" / "tiny_gguf" / "llama_q4_1.gguf")


def vivace(*args, **options):
    return subprocess.run([sys.executable, "-m", "vivace.cli", *args], capture_output=True, text=True, timeout=120, **options)


@pytest.mark.parametrize("args,keys", [
    (["ops"], {"ops", "dtypes"}), (["ops", "norm"], {"ops", "dtypes"}), (["ops", "rms_norm"], {"ops", "dtypes"}), (["doctor"], {"checks"}),
    (["plan", "--model", MODEL], {"regions", "total_bytes", "report"}),
    (["bench", "--model", MODEL, "--steps", "4", "--prompt-tokens", "16"], {"rows", "load_s", "peak_rss_mb"}),
])
def test_commands_answer_in_text_and_json(args, keys):
    text = vivace(*args)
    assert text.returncode == 0 and text.stdout.strip(), text.stderr
    data = vivace(*args, "--json")
    assert data.returncode == 0, data.stderr
    assert keys <= set(json.loads(data.stdout))


def test_the_page_names_every_command_and_load_option():
    import argparse

    from vivace.cli import parser

    page = (Path(__file__).parents[1] / "docs/cli.md").read_text()
    commands = next(a for a in parser()._actions if isinstance(a, argparse._SubParsersAction)).choices
    assert [name for name in commands if f"| `vivace {name}" not in page] == []
    options = [{o for a in commands[name]._actions for o in a.option_strings if len(o) > 2} for name in ("run", "plan", "bench")]
    assert [o for o in sorted(set.intersection(*options)) if f"`{o}`" not in page] == []


def test_ops_lists_every_op_and_alias():
    from vivace import ops

    table = ops.ops_table()
    names = [r["name"] for r in json.loads(vivace("ops", "--json").stdout)["ops"]]
    assert names == [r["name"] for r in table["ops"] + table["aliases"]]


@pytest.mark.parametrize("args,said", [
    (["ops", "no_such_op"], "no op named"),
    (["plan", "--model", "no-such-file.gguf"], "no-such-file.gguf"),
    (["run", "--model", __file__, "hi"], "test_cli.py"),
    (["plan", "--model", MODEL, "--precision", "int2"], "precision"),
    (["plan", "--model", MODEL, "--context", "1000000"], "context"),
    (["bench", "--model", MODEL, "--trace", "t.json"], "--trace writes what --profile times"),
    (["bench", "--model", MODEL, "--profile", "--trace", "no/such/folder/t.json"], "there is no folder"),
    (["bench", "--model", MODEL, "--steps", "0"], "steps: wanted 1 or more, got 0"),
    (["bench", "--model", MODEL, "--steps", "2", "--batch", "8", "--position", "100", "--chunk", "4", "--prompt-tokens", "8"], "no step in which all 8 sequences answered"),
])
def test_failures_are_one_line_and_exit_1(args, said):
    done = vivace(*args)
    assert done.returncode == 1 and said in done.stderr and "Traceback" not in done.stderr
