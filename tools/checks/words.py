"""The field's words: what docs/glossary.md replaced does not come back."""

import re
from pathlib import Path

from . import source

PURPOSE = "the field's terms (docs/glossary.md), not the old dialect's"

# Old words, as a regular expression each, and the term to use.
OLD = (
    (r"copy engines?", "TMA"),
    (r"asking warps?|copying warps?", "producer warp"),
    (r"multiplying (?:warps?|warpgroups?|groups?)", "consumer warp"),
    (r"blocks? of threads", "thread block"),
    (r"(?:tensor|matrix) units?", "tensor core"),
    (r"ways? out of the (?:kernel|product)|wgmma_finish|kFinish[A-Z]\w*|gemm_finish", "epilogue"),
    (r"attention_turned|AttentionTurned\w*", "swap-AB (attention_swap_ab)"),
    (r"attention_fed|AttentionFed\w*|scaled_attention_fed", "warp-specialized prefill (attention_prefill_tma)"),
    (r"gemm_codes|GemmCodes\w*", "weight-only GEMM (gemm_weight_only)"),
    (r"gemm_widened|GemmWiden\w*", "mixed-input GEMM (gemm_mixed_input)"),
    (r"share_[xw]", "multicast_x, multicast_w"),
    (r"WgmmaPlace|AttentionPlace", "tile coordinates"),
    (r"weigh_products|kNarrowLift|narrow_rows", "online_softmax, fp8_kv.cuh"),
    (r"\w+_micro|micro_act_mul|\w*Micro(?:Args|Key)", "block-scaled"),
    (r"\w*[qQ]uantis\w*", "quantize, with a z"),
    (r"kv_pages|resident_layers|max_codes", "num_kv_blocks, gpu_layers, max_action_tokens"),
    (r"vv_runner_(?:wants|begin|deliver|fail)", "needs_inference, start_request, complete, cancel"),
    (r"engine::(?:Machine|Placement|Watch)", "engine::Runtime, WeightUploader, GpuTimer"),
    (r"places? where activations enter products", "activation quantization point"),
)
_WORD = re.compile("|".join(rf"(?P<w{i}>(?<![\w-])(?:{old})(?![\w-]))" for i, (old, _) in enumerate(OLD)))
# Where old words are the subject: this list, a copy engine that is one, the page of old and new names, what was measured and tried.
ALLOWED = ("tools/checks/words.py", "vivace/device/device.h", "docs/stable-api.md", "tests/tools/test_checks.py", "lab/notes/")
ENDS = (".h", ".cuh", ".cc", ".cu", ".c", ".inc", ".def", ".py", ".md", ".txt", ".sh", ".toml", "")


def run(root: Path) -> list[str]:
    out = []
    for name in source.files(root):
        if name.startswith(ALLOWED) or Path(name).suffix not in ENDS or name.startswith(("tests/fixtures/", "tests/fuzz/corpus/", "tests/results/", "bench/results/", "LICENSE")):
            continue
        try:
            body = source.text(root, name)
        except UnicodeDecodeError:
            continue
        for m in _WORD.finditer(body):
            index = int(m.lastgroup[1:])
            out.append(f"{name}:{body.count(chr(10), 0, m.start()) + 1}: '{m.group(0)}': say {OLD[index][1]}")
    return out
