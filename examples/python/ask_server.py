"""Starts `vivace serve` on a free port, asks it once through the openai package, and ends it.

    python examples/python/ask_server.py "Why is the sky blue?"
"""
import json
import subprocess
import sys

from openai import OpenAI

MODEL = "smollm2-135m-instruct"
question = " ".join(sys.argv[1:]) or "Why is the sky blue? Answer in one sentence."

server = subprocess.Popen([sys.executable, "-m", "vivace.cli", "serve", MODEL, "--port", "0", "--json"], stdout=subprocess.PIPE, text=True)
try:
    url = json.loads(server.stdout.readline())["url"]
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    stream = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": question}], max_tokens=96, temperature=0, stream=True)
    for chunk in stream:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print(f"\n[{url}/v1 answered the openai package]")
finally:
    server.terminate()
    server.wait()
