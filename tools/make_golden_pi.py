"""Write the golden files of Pi0 and Pi0.5 in test/golden from a real LeRobot.

Run it in an environment with lerobot 0.6.1, its extra ``pi``, sentencepiece and protobuf (nothing
of sparkrt needs to be installed there):

    python tools/make_golden_pi.py

LeRobot's networks are built at a tiny size; weights and inputs are derived from names, so the
files hold LeRobot's outputs and nothing else. test/golden/README.md describes each file.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

GOLDEN = Path(__file__).resolve().parent.parent / 'test' / 'golden'
sys.path.insert(0, str(GOLDEN))

from lerobot.configs.types import (  # noqa: E402
    FeatureType,
    NormalizationMode,
    PolicyFeature,
    RTCAttentionSchedule,
)
from lerobot.policies.common.vla_utils import resize_with_pad_torch  # noqa: E402
from lerobot.policies.pi0 import modeling_pi0  # noqa: E402
from lerobot.policies.pi0.configuration_pi0 import PI0Config  # noqa: E402
from lerobot.policies.pi0.processor_pi0 import make_pi0_pre_post_processors  # noqa: E402
from lerobot.policies.pi05 import modeling_pi05  # noqa: E402
from lerobot.policies.pi05.configuration_pi05 import PI05Config  # noqa: E402
from lerobot.policies.pi05.processor_pi05 import make_pi05_pre_post_processors  # noqa: E402
from lerobot.policies.rtc.configuration_rtc import RTCConfig  # noqa: E402
from lerobot.policies.rtc.modeling_rtc import RTCProcessor  # noqa: E402
from lerobot.policies.rtc.relative import reanchor_relative_rtc_prefix  # noqa: E402
from lerobot.policies.utils import prepare_observation_for_inference  # noqa: E402
from lerobot.processor import (  # noqa: E402
    NormalizerProcessorStep,
    RelativeActionsProcessorStep,
    tokenizer_processor,
)
from pi_cases import (  # noqa: E402
    IMAGE_SIDE,
    IMAGE_SIZES,
    PI_CASES,
    PI_INPUTS,
    PI_SESSIONS,
    RTC_WEIGHTS,
    TINY_EXPERT,
    TINY_LANGUAGE,
    TINY_VISION,
    VOCABULARY,
    PiCase,
    PiInputs,
    PiSession,
    pi_tensor,
)
from pi_tokenizer import write_tokenizer  # noqa: E402
from seeded_weights import seeded_image, seeded_statistics, seeded_vector  # noqa: E402
from transformers import GemmaConfig  # noqa: E402
from transformers.models.gemma.modeling_gemma import GemmaRotaryEmbedding  # noqa: E402

LEROBOT_VERSION = '0.6.1'
CPU = torch.device('cpu')
TOKENIZER_FOLDER = 'pi_tokenizer'
KINDS = {
    'pi05': (PI05Config, modeling_pi05, 'PI05Policy', make_pi05_pre_post_processors),
    'pi0': (PI0Config, modeling_pi0, 'PI0Policy', make_pi0_pre_post_processors),
}


def shrink(module: Any) -> None:
    """Make a module of LeRobot build tiny networks."""
    prefix = module.PaliGemmaForConditionalGenerationWithPiGemma
    expert = module.PiGemmaForCausalLM

    def sizes(variant: str) -> Any:
        return module.GemmaConfig(**(TINY_LANGUAGE if variant == 'gemma_2b' else TINY_EXPERT))

    def tiny_prefix(config: Any) -> Any:
        for name, value in TINY_VISION.items():
            setattr(config.vision_config, name, value)
        config.vision_config.projection_dim = TINY_LANGUAGE['width']
        config.text_config.vocab_size = VOCABULARY
        return prefix(config=config)

    def tiny_expert(config: Any) -> Any:
        config.vocab_size = VOCABULARY
        return expert(config=config)

    module.get_gemma_config = sizes
    module.PaliGemmaForConditionalGenerationWithPiGemma = tiny_prefix
    module.PiGemmaForCausalLM = tiny_expert


def policy_features(features: dict[str, dict[str, Any]]) -> dict[str, PolicyFeature]:
    return {
        key: PolicyFeature(type=FeatureType(value['type']), shape=tuple(value['shape']))
        for key, value in features.items()
    }


def make_config(case: PiCase, **options: Any) -> Any:
    return KINDS[case.kind][0](
        input_features=policy_features(case.input_features()),
        output_features=policy_features(case.output_features()),
        device='cpu',
        push_to_hub=False,
        **case.fields(),
        **options,
    )


def make_policy(case: PiCase, **options: Any) -> Any:
    """LeRobot's policy for a case, with every weight derived from its name."""
    _, module, name, _ = KINDS[case.kind]
    policy = getattr(module, name)(make_config(case, **options))
    state = policy.model.state_dict()
    weights = {key: torch.from_numpy(pi_tensor(key, tuple(v.shape))) for key, v in state.items()}
    policy.model.load_state_dict(weights)
    return policy.eval()


def model_batch(case: PiCase, inputs: PiInputs, seed: str) -> dict[str, torch.Tensor]:
    batch = {
        key: (torch.from_numpy(value).float() / 255).permute(0, 3, 1, 2).contiguous()
        for key, value in inputs.images(case, seed).items()
    }
    batch['observation.state'] = torch.from_numpy(inputs.state(case, seed))
    batch['observation.language.tokens'] = torch.from_numpy(inputs.tokens(seed))
    batch['observation.language.attention_mask'] = torch.from_numpy(inputs.mask())
    return batch


def make_chunks(folder: Path) -> None:
    """pi_chunks.npz: what the policies predict, in their own space."""
    chunks = {}
    for name, case in PI_CASES.items():
        for label, inputs in PI_INPUTS[name].items():
            chunks[f'{name}/{label}'] = predict(case, inputs, f'{name}/{label}')
    np.savez_compressed(folder / 'pi_chunks.npz', **chunks)


def predict(case: PiCase, inputs: PiInputs, seed: str) -> np.ndarray:
    arguments: dict[str, Any] = {'num_steps': inputs.steps}
    rtc = None
    if inputs.rtc is not None:
        schedule, delay, horizon, _ = inputs.rtc
        rtc = RTCConfig(prefix_attention_schedule=RTCAttentionSchedule[schedule])
        arguments |= {
            'inference_delay': delay,
            'execution_horizon': horizon,
            'prev_chunk_left_over': torch.from_numpy(inputs.previous(case, seed)),
        }
    policy = make_policy(case, rtc_config=rtc)
    noise = torch.from_numpy(inputs.noise(seed))
    batch = model_batch(case, inputs, seed)
    return policy.predict_action_chunk(batch, noise=noise, **arguments).numpy()


def make_sessions(folder: Path) -> None:
    """pi_sessions.npz, pi_prompts.json, and one policy folder per session as LeRobot saves it."""
    arrays, prompts = {}, {}
    for name, session in PI_SESSIONS.items():
        policy, pre, post = make_session(session)
        prompts[name] = []
        for step, task in enumerate(session.tasks):
            with recorded_prompts() as seen:
                batch = pre(packed(session, step, task))
            prompts[name] += seen
            for part in ('tokens', 'attention_mask'):
                arrays[f'{name}/{step}/{part}'] = batch[f'observation.language.{part}'].numpy()[0]
            noise = torch.from_numpy(session.noise(step))
            arrays[f'{name}/{step}/chunk'] = post(
                policy.predict_action_chunk(batch, noise=noise)
            ).numpy()[0]
        save_folder(folder / session.folder, policy, pre, post)
    np.savez_compressed(folder / 'pi_sessions.npz', **arrays)
    (folder / 'pi_prompts.json').write_text(json.dumps(prompts, indent=1) + '\n')


def recorded_prompts() -> Any:
    """While it lasts, note every text that is cut into tokens."""
    step = tokenizer_processor.TokenizerProcessorStep
    original, seen = step._tokenize_text, []

    def note(self: Any, text: Any) -> Any:
        seen.extend([text] if isinstance(text, str) else text)
        return original(self, text)

    class Recording:
        def __enter__(self) -> list[str]:
            self.patch = mock.patch.object(step, '_tokenize_text', note)
            self.patch.start()
            return seen

        def __exit__(self, *_: object) -> None:
            self.patch.stop()

    return Recording()


def make_session(session: PiSession) -> tuple[Any, Any, Any]:
    modes = {key: NormalizationMode(mode) for key, mode in session.modes.items()}
    policy = make_policy(session.policy, normalization_mapping=modes)
    features = {**session.policy.input_features(), **session.policy.output_features()}
    statistics = {
        key: {stat: torch.from_numpy(value) for stat, value in values.items()}
        for key, values in seeded_statistics(features).items()
    }
    pre, post = KINDS[session.policy.kind][3](policy.config, statistics)
    return policy, pre, post


def packed(session: PiSession, step: int, task: str) -> dict[str, Any]:
    return prepare_observation_for_inference(session.observation(step), CPU, task=task)


def save_folder(target: Path, policy: Any, pre: Any, post: Any) -> None:
    """What save_pretrained writes, short of the weights; with this project's names of sizes."""
    target.mkdir(exist_ok=True)
    for stale in target.iterdir():
        stale.unlink()
    policy.config._save_pretrained(target)
    pre.save_pretrained(target)
    post.save_pretrained(target)
    config = target / 'config.json'
    text = config.read_text().replace('"gemma_2b"', '"tiny"')
    config.write_text(text.replace('"gemma_300m"', '"tiny_expert"'))
    for path in target.iterdir():
        path.chmod(0o644)


def make_rtc(folder: Path) -> None:
    """pi_rtc.npz: weights of every schedule, guided velocities, a prefix that is anchored anew."""
    arrays = {}
    for schedule, delay, horizon, rows in RTC_WEIGHTS:
        config = RTCConfig(prefix_attention_schedule=RTCAttentionSchedule[schedule])
        weights = RTCProcessor(config).get_prefix_weights(delay, horizon, rows)
        arrays[f'weights/{schedule}/{delay}/{horizon}/{rows}'] = weights.numpy()
    processor = RTCProcessor(RTCConfig())
    actions = torch.from_numpy(seeded_vector('rtc/actions', (2, 8, 5)))
    velocity = torch.from_numpy(seeded_vector('rtc/velocity', (2, 8, 5)))
    previous = torch.from_numpy(seeded_vector('rtc/previous', (2, 8, 5)))
    for step in range(10):
        time = 1.0 + step * -0.1
        arrays[f'guided/{step}'] = processor.denoise_step(
            x_t=actions,
            prev_chunk_left_over=previous,
            inference_delay=2,
            time=time,
            original_denoise_step_partial=lambda x: velocity,
            execution_horizon=6,
        ).detach().numpy()  # fmt: skip
    arrays['reanchored'] = reanchored()
    np.savez_compressed(folder / 'pi_rtc.npz', **arrays)


def reanchored() -> np.ndarray:
    """(6, 7): absolute actions as a relative policy would put them, from the state of step 1."""
    session = PI_SESSIONS['pi05_relative']
    _, pre, _ = make_session(session)
    steps = {type(step): step for step in pre.steps}
    return reanchor_relative_rtc_prefix(
        torch.from_numpy(seeded_vector('rtc/absolute', (6, 7))),
        torch.from_numpy(session.observation(1)['observation.state']),
        steps[RelativeActionsProcessorStep],
        steps[NormalizerProcessorStep],
        CPU,
    ).numpy()


def make_images(folder: Path) -> None:
    """pi_images.npz: pictures scaled into a square, before they are brought into [-1, 1]."""
    arrays = {}
    for height, width in IMAGE_SIZES:
        image = torch.from_numpy(seeded_image(f'{height}x{width}', height, width)).float() / 255
        square = resize_with_pad_torch(image[None], IMAGE_SIDE, IMAGE_SIDE)
        arrays[f'{height}x{width}'] = square.numpy().astype(np.float32)
    np.savez_compressed(folder / 'pi_images.npz', **arrays)


def make_rotary(folder: Path) -> None:
    """pi_rotary.npz: rotations of LeRobot's head size, at places up to the longest prefix."""
    positions = torch.tensor([0, 1, 2, 50, 255, 256, 700, 967, 1017])
    arrays = {'positions': positions.numpy()}
    for dtype in ('float32', 'bfloat16'):
        kind = getattr(torch, dtype)
        # As LeRobot does it: the whole module is cast, frequencies included.
        rotary = GemmaRotaryEmbedding(GemmaConfig(head_dim=256)).to(kind)
        cos, sin = rotary(torch.zeros(1, dtype=kind), positions[None])
        arrays |= {
            f'{dtype}/cos': cos[0].float().numpy(),
            f'{dtype}/sin': sin[0].float().numpy(),
        }
    np.savez_compressed(folder / 'pi_rotary.npz', **arrays)


def make_keys(folder: Path) -> None:
    """pi_keys.json: names, shapes and dtypes of the full-size networks, layers put together."""
    result = {}
    for kind, (_, module, _, _) in KINDS.items():
        network = {'pi05': 'PI05Pytorch', 'pi0': 'PI0Pytorch'}[kind]
        config = make_config(PiCase(kind=kind, dtype='bfloat16'))
        config.image_resolution = (224, 224)
        with torch.device('meta'):
            state = getattr(module, network)(config).state_dict()
        lines: dict[str, Any] = {}
        for key, value in state.items():
            entry = lines.setdefault(
                re.sub(r'layers\.\d+\.', 'layers.*.', key),
                {'shape': list(value.shape), 'dtype': str(value.dtype)[6:], 'count': 0},
            )
            entry['count'] += 1
        result[kind] = {'tensors': len(state), 'names': lines}
    (folder / 'pi_keys.json').write_text(json.dumps(result, indent=1) + '\n')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--output', type=Path, default=GOLDEN, help='folder to write into')
    folder = parser.parse_args().output
    if version('lerobot') != LEROBOT_VERSION:
        sys.exit(
            f'found lerobot {version("lerobot")}; these files are defined by {LEROBOT_VERSION}'
        )
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    make_keys(folder)
    shrink(modeling_pi05)
    shrink(modeling_pi0)
    tokenizer = write_tokenizer(folder / TOKENIZER_FOLDER)
    with mock.patch.object(tokenizer_processor, 'AutoTokenizer') as auto:
        auto.from_pretrained = lambda name: tokenizer
        for make in (make_chunks, make_sessions, make_rtc, make_images, make_rotary):
            make(folder)
    names = ('lerobot', 'torch', 'transformers', 'tokenizers', 'sentencepiece', 'numpy')
    versions = {name: version(name) for name in names}
    (folder / 'pi_versions.json').write_text(json.dumps(versions, indent=2) + '\n')


if __name__ == '__main__':
    main()
