"""Small models that see images, with random weights, for LMDeploy and transformers (see lmdeploy_models.py)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lmdeploy_models import SHAPE, SPECIAL, draw_weights, greedy_tokens, save_tokenizer
from PIL import Image, ImageDraw
from safetensors.torch import load_file, save_file
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
)

IMAGE_SIZE = 28


@dataclass(frozen=True)
class SeeingModel:
    """A saved model, the transformers model with the same weights, and how an image becomes its input."""

    folder: Path
    reference: Any
    tokenizer: PreTrainedTokenizerFast
    image_processor: Any
    #: The prompt as LMDeploy puts it together; {image} is where the tokens of the image go.
    layout: str
    image_token: str
    remote_code: bool = False

    def greedy(self, prompt: str, image: Image.Image, new_tokens: int) -> list[int]:
        """The tokens that transformers writes after an image and a question, in the saved chat template."""
        seen = self.image_processor(images=[image], return_tensors="pt")
        text = self.layout.format(prompt=prompt, image=self.image_token * self._tokens(seen))
        ids = torch.tensor([self.tokenizer(text).input_ids])
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **seen}
        if "image_grid_thw" in seen:  # positions of three axes are found by the kind of each token
            inputs["mm_token_type_ids"] = (ids == self.reference.config.image_token_id).int()
        return greedy_tokens(self.reference, inputs, new_tokens)

    def _tokens(self, seen: Any) -> int:
        if "image_grid_thw" in seen:
            return int(seen["image_grid_thw"].prod()) // self.image_processor.merge_size**2
        patch = self.reference.config.vision_config.patch_size
        return int((IMAGE_SIZE // patch) ** 2)


def drawing(colour: str) -> Image.Image:
    """A picture with a shape and a gradient, different for each colour."""
    image = Image.linear_gradient("L").resize((IMAGE_SIZE * 2, IMAGE_SIZE * 2)).convert("RGB")
    ImageDraw.Draw(image).ellipse((6, 10, 44, 50), fill=colour)
    return image


def llava(folder: Path) -> SeeingModel:
    """LLaVA: an encoder as in CLIP, a projector, and a llama."""
    tokenizer = save_tokenizer(folder, extra=("<image>",))
    image_id = tokenizer.convert_tokens_to_ids("<image>")
    vision = CLIPVisionConfig(
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        image_size=IMAGE_SIZE,
        patch_size=7,
        projection_dim=32,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=LlamaConfig(vocab_size=len(tokenizer), architectures=["LlamaForCausalLM"], **SHAPE),
        image_token_index=image_id,
        image_token_id=image_id,
        image_seq_length=(IMAGE_SIZE // vision.patch_size) ** 2,
        vision_feature_layer=-2,
        pad_token_id=SPECIAL.index("<pad>"),
        dtype="float32",
    )
    size = {"height": IMAGE_SIZE, "width": IMAGE_SIZE}
    image_processor = CLIPImageProcessorPil(size={"shortest_edge": IMAGE_SIZE}, crop_size=size)
    LlavaProcessor(
        image_processor,
        tokenizer,
        patch_size=vision.patch_size,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    ).save_pretrained(folder)
    model = LlavaForConditionalGeneration(config).eval()
    draw_weights(model, 15)
    model.save_pretrained(folder)
    _use_names_of_the_hub(folder / "model.safetensors")
    return SeeingModel(
        folder, model, tokenizer, image_processor, "[user]{image}\n{prompt}[assistant]", "<image>"
    )


def _use_names_of_the_hub(file: Path) -> None:
    """The hub and LMDeploy say vision_tower.vision_model for the encoder; transformers 5 saves a shorter name."""
    old, new = "vision_tower.", "vision_tower.vision_model."
    weights = load_file(file)
    save_file(
        {name if new in name else name.replace(old, new): weight for name, weight in weights.items()},
        file,
        {"format": "pt"},
    )


_QWEN2_VL_PROCESSOR = '''"""A processor of images only: the one of transformers needs torchvision, for videos."""

from transformers.processing_utils import ProcessorMixin


class ImagesOnlyProcessor(ProcessorMixin):
    attributes = ["image_processor", "tokenizer"]
    image_processor_class = "AutoImageProcessor"
    tokenizer_class = "AutoTokenizer"
    image_token = "<|image_pad|>"
'''


def qwen2_vl(folder: Path) -> SeeingModel:
    """Qwen2-VL: an encoder of any image size whose attention is one of dlinfer's operators, positions of three axes."""
    marks = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
    tokenizer = save_tokenizer(folder, extra=marks)
    start, end, image, video = (tokenizer.convert_tokens_to_ids(mark) for mark in marks)
    shape = {
        **SHAPE,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0, "mrope_section": [2, 3, 3]},
    }
    config = Qwen2VLConfig(
        text_config={"vocab_size": len(tokenizer), **shape},
        vision_config={
            "depth": 2,
            "embed_dim": 32,
            "hidden_size": 64,
            "num_heads": 2,
            "mlp_ratio": 2,
            "patch_size": 14,
        },
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        dtype="float32",
    )
    image_processor = Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=112 * 112)
    image_processor.save_pretrained(folder)
    _use_own_processor(folder)
    model = Qwen2VLForConditionalGeneration(config).eval()
    draw_weights(model, 7)
    model.save_pretrained(folder)
    layout = f"[user]{{prompt}}{marks[0]}{{image}}{marks[1]}[assistant]"
    return SeeingModel(folder, model, tokenizer, image_processor, layout, marks[2], remote_code=True)


def _use_own_processor(folder: Path) -> None:
    (folder / "processing_images_only.py").write_text(_QWEN2_VL_PROCESSOR)
    name = "processing_images_only.ImagesOnlyProcessor"
    file = folder / "preprocessor_config.json"
    settings = json.loads(file.read_text())
    file.write_text(
        json.dumps(
            {**settings, "processor_class": "ImagesOnlyProcessor", "auto_map": {"AutoProcessor": name}}
        )
    )


SEEING_BUILDERS = {"llava": llava, "qwen2_vl": qwen2_vl}
