"""One decode step of a transformers model (small random weights) with a static cache, captured by torch.cuda.graph.

usage: hf_decode.py MODEL      MODEL: deepseek_v3, glm4_moe, qwen3_moe, kimi_linear
Prints the number of replays as JSON; exit code 5 where this transformers does not know the model.
"""
import faulthandler
import json
import os
import sys

# Kernels of a hub would be asked for over a network that is not there, again and again.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("USE_HUB_KERNELS", "0")
faulthandler.dump_traceback_later(90)  # where it was, should it run past its time

import torch
from transformers import AutoConfig, AutoModelForCausalLM, StaticCache

COMMON = {"vocab_size": 4096, "max_position_embeddings": 2048, "hidden_size": 1024, "intermediate_size": 2048, "moe_intermediate_size": 512, "num_attention_heads": 16}
MODELS = {
    "deepseek_v3": {"num_hidden_layers": 6, "num_key_value_heads": 16, "n_routed_experts": 16, "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2, "n_shared_experts": 1,
                    "first_k_dense_replace": 1, "kv_lora_rank": 256, "q_lora_rank": 384, "qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "v_head_dim": 64},
    "glm4_moe": {"num_hidden_layers": 6, "num_key_value_heads": 4, "head_dim": 64, "n_routed_experts": 16, "num_experts_per_tok": 4, "n_group": 1, "topk_group": 1,
                 "first_k_dense_replace": 1},
    "qwen3_moe": {"num_hidden_layers": 6, "num_key_value_heads": 4, "head_dim": 64, "num_experts": 16, "num_experts_per_tok": 4},
    # Its own padding token lies outside this small vocabulary.
    "kimi_linear": {"num_hidden_layers": 8, "num_key_value_heads": 16, "pad_token_id": 0, "num_local_experts": 16, "num_experts_per_tok": 4, "kv_lora_rank": 256,
                    "qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "v_head_dim": 64, "linear_num_heads": 16, "linear_head_dim": 64},
}
BATCH, WARM_UP, REPLAYS = 4, 3, 5


def main():
    name = sys.argv[1]
    torch.manual_seed(0)
    try:
        config = AutoConfig.for_model(name, **COMMON, **MODELS[name])
    except (ValueError, KeyError) as error:
        print(json.dumps({"model": name, "unknown": str(error)[:200]}))
        return 5
    config._attn_implementation = "sdpa"
    with torch.device("cuda"):  # random weights on the CPU take minutes
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model = model.to("cuda").eval()
    ids = torch.randint(0, 4096, (BATCH, 1), device="cuda")
    cache = StaticCache(config=config, max_cache_len=256)
    position = torch.tensor([17], device="cuda")

    def step():
        with torch.no_grad():
            return model(ids, past_key_values=cache, cache_position=position, use_cache=True).logits

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(REPLAYS):
        graph.replay()
    torch.cuda.synchronize()
    print(json.dumps({"model": name, "replays": REPLAYS, "torch": torch.__version__}))
    return 0


sys.exit(main())
