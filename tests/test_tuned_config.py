"""What `specdec tune` writes for vLLM means there what it means in the engine: method, k, options, schedule."""

from __future__ import annotations

from specdec_core.config.resolve import resolve
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import TargetInfo
from specdec_engine.tune.candidates import Candidate
from specdec_engine.tune.choose import Choice, engine_config, vllm_config
from specdec_vllm.settings import configure, with_k

TARGET = TargetInfo(model="none", hf_config={}, vocab_size=99, hidden_size=8, num_layers=2, max_model_len=512)
CONFIG = {"method": "suffix", "suffix_decoding_max_spec_factor": 2.0, "rejection_sample_method": "coupled"}


def test_vllms_configuration_settles_to_the_engines() -> None:
    candidate, choice = Candidate("suffix", CONFIG, [4, 8], tree=False), Choice("suffix", {1: 8, 4: 4, 8: 0})
    written = vllm_config(candidate, choice)
    assert written is not None and written["method"] == "specdec"
    configured = configure(with_k(written["specdec"], written["num_speculative_tokens"]), TARGET).resolved
    own = resolve(engine_config(candidate, choice), TARGET, Registry(Catalog.discover()))
    assert (
        (configured.method, configured.num_speculative_tokens)
        == (own.method, own.num_speculative_tokens)
        == ("suffix", 8)
    )
    assert configured.options == own.options
    ranges = ((1, 3, 8), (4, 7, 4), (8, 8, 0))
    assert configured.config.num_speculative_tokens_per_batch_size == ranges
    assert own.config.num_speculative_tokens_per_batch_size == ranges
