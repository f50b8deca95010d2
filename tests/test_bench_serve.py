"""vivace bench serve: open-loop load, its figures and its picture, against a server of SmolLM2; and the script for a device, on the CPU.

About 18 s."""
import json
import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

from tests.serving import serve
from tools import receipt
from vivace import bench_serve
from vivace.bench_serve import Asked, quantile
from vivace.cli import main

ROOT = Path(__file__).resolve().parent.parent


def test_figures_of_a_run(tmp_path, capsys):
    out, picture = tmp_path / "run.json", tmp_path / "run.svg"
    with serve("--max-batch", "2") as server:
        given = ["bench", "serve", "--url", f"{server.url}/v1", "--rate", "20", "--requests", "10", "--prompt-words", "8", "--shared-words", "70", "--prefixes", "2", "--max-tokens", "6", "--seed", "3", "--json"]
        assert main([*given, "-o", str(out), "--picture", str(picture), "--slo-ttft-ms", "60000"]) == 0
        assert server.metric("vivace_generated_tokens_total") == json.loads(out.read_text())["tokens"]
    facts = json.loads(capsys.readouterr().out)
    assert facts["answered"] == 10 and facts["failed"] == facts["rejected"] == 0 and facts["ttft_ms"]["n"] == facts["e2e_ms"]["n"] == 10
    assert 0 < facts["ttft_ms"]["p50"] <= facts["ttft_ms"]["p99"] <= facts["ttft_ms"]["p99.9"] and facts["e2e_ms"]["p50"] >= facts["ttft_ms"]["p50"]
    assert 0 < facts["cached_tokens"] < facts["prompt_tokens"] and 0 < facts["tokens"] <= 60 and facts["goodput"]["share"] == 1.0
    each = json.loads(out.read_text())["each"]
    assert len(each) == 10 and [a["due"] for a in each] == sorted(a["due"] for a in each) and all(a["sent"] >= a["due"] for a in each)
    root = xml.fromstring(picture.read_text())
    assert root.tag.endswith("svg") and len(root.findall("{*}polyline")) == 3


def test_what_is_refused_and_lost(capsys):
    """429 and 404 are counted, not waited for; nobody there is an error."""
    with serve("--max-batch", "1", "--max-waiting", "1") as server:
        assert main(["bench", "serve", "--url", server.url, "--rate", "1000", "--requests", "12", "--max-tokens", "40", "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert facts["rejected"] >= 5 and facts["answered"] + facts["rejected"] == 12 and facts["goodput"]["share"] < 1
        assert main(["bench", "serve", "--url", server.url, "--name", "gpt-5", "--requests", "2", "--rate", "100", "--json"]) == 1
        assert json.loads(capsys.readouterr().out)["failed"] == 2
    assert main(["bench", "serve", "--url", server.url, "--requests", "1"]) == 1 and "no server" in capsys.readouterr().err
    for wrong in (["--rate", "0"], ["--url", "ftp://x"], ["--shared-words", "-1"]):
        assert main(["bench", "serve", *wrong]) == 1


def test_arrivals_do_not_depend_on_answers():
    class args:
        seed, rate, requests, prompt_words, shared_words, prefixes, max_tokens = 5, 50.0, 2000, 3, 4, 2, 8
    asked = bench_serve.plan(args, "m")
    gaps = [b.due - a.due for a, b in zip(asked, asked[1:])]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(1 / 50, rel=0.1) and sum((g - mean) ** 2 for g in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.25)  # exponential
    assert len({json.loads(a.body)["messages"][0]["content"].split("\n")[0] for a in asked}) == 2
    assert [a.body for a in asked] == [a.body for a in bench_serve.plan(args, "m")]


def test_quantiles():
    values = [float(i) for i in range(1, 1001)]
    assert [quantile(values, q) for q in (0.5, 0.99, 0.999, 1.0)] == [500.0, 990.0, 999.0, 1000.0]
    assert quantile([], 0.5) is None and quantile([3.0], 0.999) == 3.0
    one = Asked(1.0, b"")
    bench_serve._take(one, {"choices": [{"delta": {"role": "assistant", "content": ""}}]}, 1.5)
    assert one.first is None, "the role is no text"
    bench_serve._take(one, {"choices": [{"delta": {"content": "a"}}]}, 1.6)
    bench_serve._take(one, {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 4}}}, 1.7)
    assert (one.first, one.chunks, one.tokens, one.cached) == (1.6, [1.6], 1, 4)


TINY = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 128, "vocab_size": 2048,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10000, "tie_word_embeddings": False, "hidden_act": "silu", "attention_bias": False, "torch_dtype": "bfloat16"}


def test_the_device_script(tmp_path):
    """bench/bench_serve_device.py where there is no device: every part leaves its rows, and a part that fails says so."""
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/config.json").write_text(json.dumps(TINY))
    (tmp_path / "facts.json").write_text('{"chip": "cpu"}')
    given = [sys.executable, ROOT / "bench/bench_serve_device.py", "--small", "--device", "cpu", "--config", tmp_path / "tiny/config.json", "--facts", tmp_path / "facts.json", "--out", tmp_path]
    done = subprocess.run([*map(str, given)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads((tmp_path / "bench/results/cpu/serve.json").read_text())
    assert receipt.errors(data, "serve") == []
    found = {row["case"].rsplit("metric=", 1)[1]: row for row in data["rows"]}
    assert set(found) == {"answer", "step", "socket", "first", "batch", "snapshot", "fork", "to_host", "restore", "prefill", "cycle"}
    assert all(row["p50_us"] > 0 for row in data["rows"]) and found["cycle"]["n"] == 60 and "32 of 32 blocks free" in found["cycle"]["note"]
    assert "MISSED" in done.stdout or "met" in done.stdout
    late = subprocess.run([*map(str, given), "--parts", "stream,first", "--seconds", "0"], capture_output=True, text=True, timeout=200)
    assert late.returncode == 1 and late.stdout.count("NOT MEASURED: no time left") == 2
