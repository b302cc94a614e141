"""The plain loop: one process, transformers for sampling and training, peft for the adapter.

It is what one would write first and then mend where it is slow: one batched ``generate`` for all answers,
with left padding and a key/value cache and without gradients; scaled dot-product attention; logits only over
the answers; groups without anything to learn left out; one micro-batch per prompt, which has the least
padding and was the fastest split here.
"""

import time
from collections.abc import Sequence

import torch
from benchmarks.first_loop.messages import PlainResult, PlainSettings, PlainStep, Sample
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessor, LogitsProcessorList

from art.demo import task


class PlainLoop:
    """Model, adapter, tokenizer and optimizer."""

    def __init__(self, settings: PlainSettings) -> None:
        torch.set_num_threads(settings.threads)
        self._settings = settings
        self._tokenizer = AutoTokenizer.from_pretrained(settings.model_path, padding_side="left")
        base = AutoModelForCausalLM.from_pretrained(
            settings.model_path, dtype=torch.float32, attn_implementation="sdpa"
        )
        self._model = PeftModel.from_pretrained(base, settings.adapter_path, is_trainable=True)
        self._trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._trained, lr=settings.learning_rate, weight_decay=0.0, fused=True
        )
        self._pad = self._tokenizer.pad_token_id

    def warm_up(self) -> None:
        """One short generation, so that no step pays for what happens once."""
        self._generate(["Say yes."], 1, 2, None)

    def step(self, asked: PlainStep) -> PlainResult:
        """Samples, rewards, trains."""
        started = time.perf_counter()
        tokens, mask, width = self._generate(asked.prompts, asked.samples, asked.max_tokens, asked.recorded)
        texts = self._tokenizer.batch_decode(tokens[:, width:], skip_special_tokens=True)
        rewards = torch.tensor([task.reward(text) for text in texts], dtype=torch.float64)
        sampled = time.perf_counter()
        groups = torch.arange(len(rewards)).split(asked.samples)
        chosen = [group for group in groups if rewards[group].amax() > rewards[group].amin()]
        logprobs, computed = self._train(tokens, mask, width, rewards, chosen)
        ended = time.perf_counter()
        return PlainResult(
            sampling_s=sampled - started,
            training_s=ended - sampled if chosen else 0.0,
            reward=float(rewards.mean()),
            trained=bool(chosen),
            prompt_tokens=int(mask[:, :width].sum()),
            completion_tokens=int(mask[:, width:].sum()),
            computed_tokens=computed,
            difference=_difference(asked.recorded, chosen, logprobs, asked.samples),
        )

    @torch.inference_mode()
    def _generate(
        self, prompts: Sequence[str], samples: int, max_tokens: int, recorded: list[list[Sample]] | None
    ) -> tuple[Tensor, Tensor, int]:
        """Tokens and mask ``[prompts * samples, width + answer]``, int64, and the padded prompts' width."""
        self._model.eval()
        conversations = [[{"role": "user", "content": prompt}] for prompt in prompts]
        encoded = self._tokenizer.apply_chat_template(
            conversations, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
        )
        width = encoded["input_ids"].shape[1]
        if recorded is not None:
            _check_prompts(encoded["input_ids"], encoded["attention_mask"], recorded)
        tokens = self._model.generate(
            **encoded,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            num_return_sequences=samples,
            max_new_tokens=max_tokens,
            pad_token_id=self._pad,
            logits_processor=LogitsProcessorList(
                [] if recorded is None else [_Recorded(recorded, width, self._pad)]
            ),
        )
        answers = tokens[:, width:]
        ended = (answers == self._tokenizer.eos_token_id).long()
        real = ended.cumsum(1) - ended == 0  # the end itself is part of the answer
        prompt_mask = encoded["attention_mask"].repeat_interleave(samples, 0)
        return tokens.clone(), torch.cat((prompt_mask, real.long()), 1), width

    def _train(
        self, tokens: Tensor, mask: Tensor, width: int, rewards: Tensor, chosen: list[Tensor]
    ) -> tuple[list[Tensor], int]:
        """One optimizer step; returns the log-probs of each group's answers before it, ``[samples, n]``, and
        how many tokens were computed."""
        if not chosen:
            return [], 0
        settings = self._settings
        self._model.train()
        entries = sum(int(mask[group, width:].sum()) for group in chosen)
        before, computed = [], 0
        for group in chosen:
            centred = rewards[group] - rewards[group].mean()
            advantage = (centred / (rewards[group].std(correction=0) + 1e-6)).float()[:, None]
            used = mask[group].any(0).nonzero()  # the other columns are needed by other groups only
            part = slice(int(used[0]), int(used[-1]) + 1)
            group_tokens, group_mask = tokens[group, part], mask[group, part]
            answer = part.stop - width
            positions = (group_mask.cumsum(1) - 1).clamp_(min=0)
            logits = self._model(
                input_ids=group_tokens[:, :-1],
                attention_mask=group_mask[:, :-1],
                position_ids=positions[:, :-1],
                logits_to_keep=answer,
                use_cache=False,
            ).logits
            targets = group_tokens[:, -answer:].flatten()
            losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets, reduction="none")
            logprobs = -losses.view(len(group), answer)
            before.append(logprobs.detach())
            computed += group_tokens[:, :-1].numel()
            ratio = (logprobs - logprobs.detach()).exp()
            clipped = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
            surrogate = torch.minimum(ratio * advantage, clipped * advantage)
            (-(surrogate * group_mask[:, -answer:]).sum() / entries).backward()
        torch.nn.utils.clip_grad_norm_(self._trained, settings.max_grad_norm)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return before, computed


class _Recorded(LogitsProcessor):
    """Leaves one token to draw: the one that was recorded."""

    def __init__(self, recorded: list[list[Sample]], width: int, pad: int) -> None:
        answers = [sample.completion_ids for group in recorded for sample in group]
        longest = max(map(len, answers))
        self._answers = torch.tensor([answer + [pad] * (longest - len(answer)) for answer in answers])
        self._width = width

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """As transformers calls it: ``input_ids [B, n]``, ``scores [B, V]``."""
        column = self._answers[:, input_ids.shape[1] - self._width, None]
        return torch.full_like(scores, -torch.inf).scatter_(1, column, 0.0)


def _check_prompts(tokens: Tensor, mask: Tensor, recorded: list[list[Sample]]) -> None:
    for row, present, group in zip(tokens, mask, recorded, strict=True):
        if row[present.bool()].tolist() != group[0].prompt_ids:
            raise ValueError("the tokenizer here and the server's make different tokens of one prompt")


def _difference(
    recorded: list[list[Sample]] | None, chosen: list[Tensor], logprobs: list[Tensor], samples: int
) -> float | None:
    if recorded is None or not chosen:
        return None
    theirs = [recorded[int(group[0]) // samples] for group in chosen]
    differences = [
        abs(mine - other)
        for group, rows in zip(theirs, logprobs, strict=True)
        for sample, row in zip(group, rows.tolist(), strict=True)
        for mine, other in zip(row, sample.logprobs, strict=False)
    ]
    return sum(differences) / len(differences)
