"""The reference engine keeps the contract of hosts."""

from specdec_engine import LLM, SamplingParams
from specdec_testing.host import HostContract
from specdec_testing.targets import tiny_target

MODEL = tiny_target("llama")


class TestEngine(HostContract):
    vocab_size = MODEL.config.vocab_size

    def generate(self, prompt, max_tokens, config, plugins):
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        with LLM(hf_model=MODEL, speculative_config=config, plugins=plugins, kv_cache_tokens=512) as llm:
            return llm.generate([{"prompt_token_ids": list(prompt)}], params)[0].outputs[0].token_ids
