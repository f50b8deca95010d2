"""Writes tests/fixtures/vad.safetensors: what onnxruntime 1.32 makes of Silero VAD v6.2 on the sound of tests/speech_data.py.

    python tests/reference/make_silero_onnx.py     # in an environment that has onnxruntime too
"""
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


def main() -> None:
    import onnxruntime
    from safetensors.numpy import save_file

    from tests import speech_data

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(speech_data.weights("silero-vad"), options)
    x = speech_data.sentences_and_telephone()
    state, context, out = np.zeros((2, 1, 128), np.float32), np.zeros(64, np.float32), []
    for i in range(0, len(x), 512):
        frame = np.pad(x[i:i + 512], (0, max(0, i + 512 - len(x))))
        p, state = session.run(None, {"input": np.concatenate([context, frame])[None], "state": state, "sr": np.array(16000, np.int64)})
        context = frame[-64:]
        out.append(p[0, 0])
    save_file({"probabilities": np.array(out, np.float32)}, Path(__file__).resolve().parents[1] / "fixtures" / "vad.safetensors")


if __name__ == "__main__":
    main()
