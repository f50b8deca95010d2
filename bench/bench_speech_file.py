"""A file of 11 seconds on one thread of a CPU, beside faster-whisper in the same run: bench/results/cpu/speech_file.json.

    pip install 'vivace[bench-speech]'                       # faster-whisper, of this bench alone
    python bench/bench_speech_file.py [--models whisper-tiny.en,whisper-base] [--repeats 7] [--receipt]

From samples in memory to segments: int8 weights and activations (`q8`, CTranslate2's `int8`), greedy at temperature 0, one thread each, the two in
turn so that both meet the same machine; the median counts. Both must say the same words but for two. Wants a machine that does nothing else.
"""
import argparse
import json
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ["OMP_NUM_THREADS"] = "1"
import numpy as np  # noqa: E402

from tests import speech_data  # noqa: E402
from tests.reference.make_whisper_ct2 import with_vocabulary  # noqa: E402
from tests.test_transcribe import errors  # noqa: E402
from tools.receipt import Receipt  # noqa: E402

SOURCES = ["vivace/models/whisper/*.cc", "vivace/models/whisper/*.h", "vivace/cpu/**/*.cc", "python/vivace/speech/*.py", "bench/bench_speech_file.py"]
ASKED = dict(language="en", temperature=0.0)


def clip():
    """11.0 seconds: two sentences of a novel and the pause between them."""
    from vivace import audio

    a, b = (audio.read(speech_data.librivox()[n][0])[0] for n in ("0870", "0930"))
    return np.concatenate([a, np.zeros(176000 - len(a) - len(b), np.float32), b])


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--models", default="whisper-tiny.en,whisper-base")
    p.add_argument("--repeats", type=int, default=7)
    p.add_argument("--receipt", action="store_true")
    args = p.parse_args()
    import faster_whisper

    import vivace

    x = clip()
    r = Receipt("speech_file", chip="cpu", command="python bench/bench_speech_file.py --receipt", sources=SOURCES, versions={"vivace": vivace.__version__, "faster-whisper": faster_whisper.__version__})
    for name in args.models.split(","):
        folder = speech_data.weights(name)
        with vivace.load_model(folder, device="cpu", precision="q8", threads=1) as ours:
            theirs = faster_whisper.WhisperModel(with_vocabulary(folder), device="cpu", compute_type="int8", cpu_threads=1, num_workers=1)
            run = {"vivace": lambda: ours.transcribe(x, **ASKED).text,
                   "faster-whisper": lambda: "".join(s.text for s in theirs.transcribe(x, beam_size=1, **ASKED)[0])}
            texts, took = {k: f() for k, f in run.items()}, {k: [] for k in run}  # the first call of each warms it
            for _ in range(args.repeats):
                for k, f in run.items():
                    start = time.perf_counter()
                    f()
                    took[k].append((time.perf_counter() - start) * 1e6)
        assert errors(texts["faster-whisper"], texts["vivace"]) <= 2, texts
        own, peer = (sorted(took[k])[args.repeats // 2] for k in run)
        r.row(op="e2e", case=f"model={name},seconds=11,threads=1,metric=file", dtype="q8", tool="host clock", p50_us=own, n=args.repeats, limit_us=peer, peer=f"faster-whisper {faster_whisper.__version__} int8", peer_p50_us=peer,
              note=f"shortest {min(took['vivace']):.0f} us, faster-whisper's {min(took['faster-whisper']):.0f}")
        print(json.dumps({"model": name, "vivace_s": round(own / 1e6, 3), "faster_whisper_s": round(peer / 1e6, 3), "ratio": round(own / peer, 3), "texts": texts}), flush=True)
    if args.receipt:
        r.write("bench")
    return 0


if __name__ == "__main__":
    sys.exit(main())
