"""The benches of a robot's wire and of Qwen3-VL, tried on the CPU: they run to their end and say something of each row. Times are for a machine that does nothing else."""
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# GR00T N1.7 as its bench asks it (pictures of 256 x 256, its image token, 29 values of state), and small otherwise.
GROOT = {"model_type": "Gr00tN1d7", "backbone_embedding_dim": 32, "select_layer": 1, "max_state_dim": 32, "max_action_dim": 8, "action_horizon": 40, "hidden_size": 16, "input_embedding_dim": 32, "max_seq_len": 64,
         "max_num_embodiments": 1, "diffusion_model_cfg": {"num_layers": 2, "num_attention_heads": 2, "attention_head_dim": 16, "output_dim": 16}, "vl_self_attention_cfg": None, "attend_text_every_n_blocks": 2,
         "num_inference_timesteps": 4, "num_timestep_buckets": 1000, "image_target_size": [256, 256],
         "backbone": {"image_token_id": 151655, "text": {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 151656, "rms_norm_eps": 1e-6, "rope_theta": 5e6,
                                                         "mrope_section": [4, 2, 2]},
                      "vision": {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 1, "num_position_embeddings": 16, "deepstack_visual_indexes": [], "patch_size": 16, "spatial_merge_size": 2,
                                 "temporal_patch_size": 2, "out_hidden_size": 32}}}


def test_groot_alone_and_together(tmp_path):
    (tmp_path / "groot-n17").mkdir()
    (tmp_path / "groot-n17" / "config.json").write_text(json.dumps(GROOT))
    cases = ["groot-n17:f32:1", "groot-n17:f32:1:2"]
    ran = subprocess.run([sys.executable, "bench/bench_vla.py", "--device", "cpu", "--configs", tmp_path, "--cases", ",".join(cases), "--calls", "1"], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
    lines = [line for line in ran.stdout.splitlines() if line.startswith("groot")]
    assert [line.split()[0] for line in lines] == cases and all("predict p50" in line for line in lines)


@pytest.mark.parametrize("command,rows", [
    (["bench/bench_policy_wire.py", "--calls", "3"], ["frames=2x224x224,metric=over", "frames=2x224x224,metric=trip", "frames=2x480x640,metric=over", "frames=2x480x640,metric=trip"]),
    (["bench/bench_vl_device.py", "--device", "cpu", "--config", "tests/fixtures/qwen3_vl", "--precisions", "bf16", "--calls", "2", "--side", "32"], ["image=32x32,words=32,metric=first", "image=32x32,words=32,metric=step"]),
])
def test_it_runs(command, rows):
    ran = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert len(lines) == len(rows) and all(row in line and "p50" in line for row, line in zip(rows, lines)), ran.stdout
