"""What `vivace plan` says of hybrids at 256k tokens, on the host."""
import json

import pytest
from safetensors.numpy import load_file, save_file

from tests.test_hybrid import NAMES, TINY
from vivace import cli


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kv, size", [("bf16", 2), ("e4m3", 1)])
def test_plan_of_256k_tokens(tmp_path, capsys, name, kv, size):
    """Keys and values grow with the context, in the layers that attend alone; the state does not; nothing is planned beyond what a model was trained for."""
    config = json.loads((TINY / name / "config.json").read_text()) | {"max_position_embeddings": 262144}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(load_file(TINY / name / "model.safetensors"), tmp_path / "model.safetensors")
    attend = config["layer_types"].count("full_attention") * 2 * config["num_key_value_heads"] * config["head_dim"] * size

    def plan(context, *more):
        code = cli.main(["plan", "--model", str(tmp_path), "--device", "cpu", "--kv-dtype", kv, "--context", str(context), *more])
        return code, capsys.readouterr()

    plans = {}
    for context in (1000, 262144):
        code, said = plan(context, "--json", "--max-batch", "2")
        assert code == 0
        plans[context] = json.loads(said.out)
        assert plans[context]["sequence"] == {"positions": context, "kv_bytes": attend * -(-context // 64) * 64, "state_bytes": plans[context]["report"]["state_bytes"]}
        assert sum(r["bytes"] for r in plans[context]["regions"] if r["name"][:8] in ("k_cache.", "v_cache.")) == 2 * plans[context]["sequence"]["kv_bytes"]
    short, long = (plans[c]["sequence"]["state_bytes"] for c in plans)
    assert short == long > 0
    code, said = plan(262144)
    assert code == 0 and f"{attend * 262144 + long:>15,}  of them for a sequence of 262,144 positions: keys and values {attend * 262144:,}, recurrent state {long:,}" in said.out
    code, said = plan(262145)
    assert code == 1 and "error[LimitExceeded]: " in said.err and "context: the model was trained for 262144 positions, got 262145" in said.err
