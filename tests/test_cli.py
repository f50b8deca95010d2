"""The command line, as a user runs it: every command, text and --json, and how it fails."""
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import vivace as package
from vivace import fetch

TINY = Path(__file__).parent / "fixtures" / "tiny"
CHAT = str(fetch.cache_dir() / fetch.MODELS["smollm2-135m-instruct"].filename)
MODEL = str(Path(__file__).parent / "fixtures" / "tiny_gguf" / "llama_q4_1.gguf")


def vivace(*args, **options):
    return subprocess.run([sys.executable, "-m", "vivace.cli", *args], capture_output=True, text=True, timeout=120, **options)


@pytest.mark.parametrize("args,keys", [
    (["ops"], {"ops", "dtypes"}), (["ops", "norm"], {"ops", "dtypes"}), (["ops", "rms_norm"], {"ops", "dtypes"}), (["doctor"], {"checks"}),
    (["plan", "--model", MODEL], {"regions", "total_bytes", "sequence", "report"}),
    (["bench", "--model", MODEL, "--steps", "4", "--prompt-tokens", "16"], {"rows", "load_s", "peak_rss_mb"}),
])
def test_commands_answer_in_text_and_json(args, keys):
    text = vivace(*args)
    assert text.returncode == 0 and text.stdout.strip(), text.stderr
    data = vivace(*args, "--json")
    assert data.returncode == 0, data.stderr
    assert keys <= set(json.loads(data.stdout))


def test_bench_rows_have_their_rate():
    rows = json.loads(vivace("bench", "--model", MODEL, "--steps", "4", "--prompt-tokens", "16", "--json").stdout)["rows"]
    assert rows and all(r["tokens_per_s"] > 0 for r in rows)


def test_the_page_names_every_command_and_load_option():
    import argparse

    from vivace.cli import parser

    page = (Path(__file__).parents[1] / "docs/cli.md").read_text()
    commands = next(a for a in parser()._actions if isinstance(a, argparse._SubParsersAction)).choices
    assert [name for name in commands if f"| `vivace {name}" not in page] == []
    options = [{o for a in commands[name]._actions for o in a.option_strings if len(o) > 2} for name in ("run", "plan", "bench")]
    assert [o for o in sorted(set.intersection(*options)) if f"`{o}`" not in page] == []


def test_help_names_every_dtype_of_convert():
    from vivace.convert import GGUF_DTYPES

    said = vivace("convert", "--help").stdout
    assert [d for d in GGUF_DTYPES if not re.search(rf"\b{d}\b", said)] == []


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
    (["bench", "--model", MODEL, "--profile", "--trace", "no/such/folder/t.json"], "error[NotFound]: "),
    (["bench", "--model", MODEL, "--profile", "--trace", "/proc/x"], "/proc/x: "),
    (["bench", "--model", MODEL, "--prompt-tokens", "100000"], "error[LimitExceeded]: bench: prompt_tokens: 100000 do not fit the context of"),
    (["bench", "--model", MODEL, "--steps", "5000", "--context", "100", "--prompt-tokens", "9"], "bench: position 8 + 5000 steps do not fit the context of 100; give at most 92"),
    (["bench", "--model", MODEL, "--position", "100", "--context", "100", "--prompt-tokens", "9"], "give at most 0 steps from there"),
    (["verify", "--model", MODEL, "--precision", "q8", "--text", "/dev/zero"], "error[InvalidArgument]: /dev/zero: wanted a regular file"),
    (["convert", str(TINY / "qwen3"), "/proc/x.gguf"], "/proc/x.gguf: "),
    (["convert", str(TINY / "qwen3"), "/dev/null/x.gguf"], "/dev/null/x.gguf: "),
    (["tune", "-o", "no/such/x", "--weight", "1x1"], "error[NotFound]: "),
    (["bench", "--model", MODEL, "--steps", "0"], "steps: wanted 1 or more, got 0"),
    (["bench", "--model", MODEL, "--steps", "2", "--batch", "8", "--position", "100", "--prefill-chunk", "4", "--prompt-tokens", "8"], "no step in which all 8 sequences answered"),
])
def test_failures_are_one_line_and_exit_1(args, said):
    done = vivace(*args)
    assert done.returncode == 1 and said in done.stderr and "Traceback" not in done.stderr
    assert done.stderr.startswith("error[") and done.stderr.count("\n") == 1
    data = vivace(*args, "--json")
    error = json.loads(data.stdout)["error"]
    assert data.returncode == 1 and f"error[{error['code']}]: " in data.stderr and set(error) == {"code", "message"}


def test_the_name_alone_is_answered_with_help(capsys):
    from vivace import cli

    assert cli.main([]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("usage: vivace") and "convert" in said.out and said.err == ""


def test_more_than_there_is_is_taken_with_a_note():
    done = vivace("plan", "--model", MODEL, "--threads", "1000", "--gpu-layers", "200")
    assert done.returncode == 0
    threads, layers = done.stderr.splitlines()
    assert re.fullmatch(r"vivace: --threads: 1000 threads share the \d+ cores of this process, and wait for each other", threads)
    assert re.fullmatch(r"vivace: --gpu-layers: 200 asked for, the model has \d+: all stay", layers)


@pytest.mark.parametrize("option", ["--max-tokens", "--top-k", "--seed", "--context", "--threads", "--max-batch", "--prefill-chunk", "--num-kv-blocks", "--gpu-layers", "--max-in-flight-steps"])
@pytest.mark.parametrize("value", ["9" * 20, "-" + "9" * 20, "1.5", "x"])
def test_numbers_out_of_range_are_named(option, value, capsys, monkeypatch):
    from vivace import cli

    monkeypatch.setattr("sys.argv", ["vivace", "run", "--json"])
    with pytest.raises(SystemExit) as e:
        cli.main(["run", option, value, "--json", "hi"])
    said = capsys.readouterr()
    assert e.value.code == 2 and f"error[InvalidArgument]: argument {option}: wanted a whole number from" in said.err and json.loads(said.out)["error"]["code"] == "InvalidArgument"


def test_standard_output_that_takes_nothing():
    with open("/dev/full", "w") as full:
        for args in (["ops"], ["ops", "--json"], ["plan", "--model", MODEL]):
            done = subprocess.run([sys.executable, "-m", "vivace.cli", *args], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
            assert done.returncode == 1 and done.stderr == "error[IoError]: standard output: No space left on device\n", done.stderr
    done = subprocess.run(f"{sys.executable} -m vivace.cli ops --json | head -c 10", shell=True, capture_output=True, text=True, timeout=120)
    assert done.stderr == "" and len(done.stdout) == 10
    done = vivace("ops", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and done.stdout


def test_text_that_is_no_utf8(tmp_path):
    (tmp_path / "t").write_bytes(b"caf\xe9")
    for args in (["calibrate", "--model", MODEL, "--prompts"], ["verify", "--model", MODEL, "--precision", "q8", "--text"]):
        done = vivace(*args, str(tmp_path / "t"))
        assert done.returncode == 1 and "error[CorruptData]: " in done.stderr and "no UTF-8" in done.stderr and "Traceback" not in done.stderr


def test_escape_sequences_of_files_do_not_reach_the_terminal(tmp_path):
    for key, value in (("architectures", ["\x1b[2J\x9b31m"]), ("hidden_act", "\x1b]0;x\x07"), ("rope_scaling", {"rope_type": "\x1b[2J"}), ("quantization_config", {"quant_method": "\x1b[2J"})):
        shutil.copytree(TINY / "llama", tmp_path / key)
        config = json.loads((tmp_path / key / "config.json").read_text())
        (tmp_path / key / "config.json").write_text(json.dumps({**config, key: value}))
        done = vivace("plan", "--model", str(tmp_path / key))
        assert done.returncode == 1 and done.stderr.rstrip("\n").isprintable(), done.stderr
        with pytest.raises(package.Error) as e:
            package.load_model(tmp_path / key)
        assert str(e.value).isprintable()


@pytest.mark.skipif(not os.path.exists(CHAT), reason="run ./quickstart")
def test_a_chat_goes_on_after_a_full_context_and_a_bad_byte():
    """Six turns in a context that holds two or three of them, one of them with a byte that is no text."""
    turns = b"".join(b"tell me about the number %d\n" % i if i != 3 else b"caf\xe9\n" for i in range(6))
    done = subprocess.run([sys.executable, "-m", "vivace.cli", "run", "--model", CHAT, "--context", "120", "--max-tokens", "8", "--json", "--device", "cpu"], input=turns, capture_output=True, timeout=120)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and b"Traceback" not in done.stderr, done.stderr
    assert [i for i, line in enumerate(lines) if "error" in line] == [3] and lines[3]["error"]["code"] == "InvalidArgument"
    assert len(lines) == 6 and b"the oldest turn is forgotten" in done.stderr


def test_warnings_are_one_line():
    done = subprocess.run([sys.executable, "-c", "import warnings\nfrom vivace import cache, cli\ncli.cmd_ops = lambda a: warnings.warn('no cache', cache.CacheWarning) or 0\ncli.main(['ops'])"], capture_output=True, text=True, timeout=60)
    assert done.stderr == "vivace: no cache\n"
