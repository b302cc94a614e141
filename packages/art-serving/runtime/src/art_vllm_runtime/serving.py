"""vLLM's engine client and OpenAI endpoints, with a token record on every choice."""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from http import HTTPStatus
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionResponse
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from vllm.outputs import RequestOutput
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM

from art_vllm_runtime.token_records import encoded_record

FIELD = "art"


class RecordingLLM(AsyncLLM):
    """Asks for the log-prob of every sampled token and remembers how each request was sampled."""

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **kwargs: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        """As ``AsyncLLM.generate``; outputs have ``art_sampling``."""
        if sampling_params.logprobs is None:
            sampling_params.logprobs = 0
            sampling_params.flat_logprobs = True
        async with contextlib.aclosing(
            super().generate(prompt, sampling_params, request_id, **kwargs)
        ) as outputs:
            async for output in outputs:
                output.art_sampling = sampling_params
                yield output


class _Last:
    """Passes outputs on and keeps the last one."""

    def __init__(self, outputs: AsyncIterator[RequestOutput]) -> None:
        self._outputs = outputs
        self.output: RequestOutput | None = None

    async def __aiter__(self) -> AsyncIterator[RequestOutput]:
        async for output in self._outputs:
            self.output = output
            yield output


class _Records:
    """What both endpoints share: the generations of versions, and what cannot carry a record."""

    generations: dict[int, str | None]

    def refuse(self, request: Any) -> Any:
        """An error response for what has no token record, or None."""
        problem = None
        if request.stream:
            problem = (
                "streaming is not supported: a stream does not carry the token record; set stream to false"
            )
        elif request.use_beam_search:
            problem = "beam search is not supported: its tokens are not sampled from the policy"
        if problem is None:
            return None
        return self.create_error_response(problem, status_code=HTTPStatus.BAD_REQUEST)  # type: ignore[attr-defined]

    def attach(self, choices: list[Any], outputs: list[RequestOutput]) -> None:
        """Adds the field to each choice; they are in the order of the outputs."""
        pairs = [(output, choice) for output in outputs for choice in output.outputs]
        for choice, (request, output) in zip(choices, pairs, strict=True):
            setattr(choice, FIELD, encoded_record(request, output, self.generations))


class ArtChat(_Records, OpenAIServingChat):
    """Chat completions."""

    def refuse(self, request: Any) -> Any:
        """As every endpoint's; also of tools whose calls nobody would find in the answer."""
        if request.tools and request.tool_choice not in (None, "none") and not self.enable_auto_tools:
            return self.create_error_response(
                "tools need a parser of the model's tool calls, and the service was started without one. "
                "Name it, for example art.MegatronBackend(tool_parser='hermes'). Or send tool_choice='none' "
                "and read the call from the answer's text",
                status_code=HTTPStatus.BAD_REQUEST,
            )
        return super().refuse(request)

    async def _create_chat_completion(self, request: Any, raw_request: Any = None) -> Any:
        refused = self.refuse(request)
        return refused or await super()._create_chat_completion(request, raw_request)

    async def chat_completion_full_generator(
        self, request: Any, result_generator: AsyncIterator[RequestOutput], *args: Any, **kwargs: Any
    ) -> Any:
        """The response, with records."""
        last = _Last(result_generator)
        response = await super().chat_completion_full_generator(request, last, *args, **kwargs)
        if isinstance(response, ChatCompletionResponse) and last.output is not None:
            self.attach(response.choices, [last.output])
        return response


class ArtCompletion(_Records, OpenAIServingCompletion):
    """Completions."""

    async def _create_completion(self, request: Any, raw_request: Any = None) -> Any:
        refused = self.refuse(request)
        return refused or await super()._create_completion(request, raw_request)

    def request_output_to_completion_response(
        self, final_res_batch: list[RequestOutput], *args: Any, **kwargs: Any
    ) -> Any:
        """The response, with records."""
        response = super().request_output_to_completion_response(final_res_batch, *args, **kwargs)
        self.attach(response.choices, final_res_batch)
        return response
