"""The HTTP application: OpenAI's endpoints, health, and the administration that art-serving uses."""

import asyncio
import hmac
import os
from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from vllm.entrypoints.openai.chat_completion.api_router import attach_router as attach_chat
from vllm.entrypoints.openai.completion.api_router import attach_router as attach_completion
from vllm.entrypoints.openai.models.api_router import attach_router as attach_models
from vllm.entrypoints.openai.models.protocol import BaseModelPath
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.serve.exception_handling.register import init_exception_handler
from vllm.renderers.online_renderer import OnlineRenderer
from vllm.v1.engine.exceptions import EngineDeadError

from art_vllm_runtime.activation import ActivationFailedError, Adapters
from art_vllm_runtime.serving import ArtChat, ArtCompletion, RecordingLLM
from art_vllm_runtime.stats_page import StatsPage

_FAILURE_WAIT_S = 1.0


@dataclass
class Member:
    """What the endpoints need to know about this member."""

    engine: RecordingLLM
    page: StatsPage
    base_model_name: str
    model_path: str
    adapter_name: str
    stall_timeout_s: float
    admin_token: str
    api_key: str | None
    tool_parser: str | None = None
    adapters: Adapters = field(init=False)
    failure: str | None = None
    failed: asyncio.Event = field(default_factory=asyncio.Event)

    def health(self) -> tuple[str, str]:
        """State and detail; the state is one of ``ready``, ``stalled``, ``quarantined``, ``failed``."""
        if self.failure is not None:
            return "failed", self.failure
        if self.adapters.doubt is not None:
            return "quarantined", self.adapters.doubt
        stalled = self.page.stalled_for_s()
        if stalled > self.stall_timeout_s:
            return (
                "stalled",
                f"{self.page.unfinished} requests run, but no engine step ended for {stalled:.1f} s",
            )
        return "ready", ""


def build_app(member: Member) -> FastAPI:
    """The application; the engine must be up."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    engine = member.engine
    app.state.args = Namespace(log_error_stack=False, sse_keep_alive_interval=0)
    app.state.engine_client = engine
    app.state.vllm_config = engine.vllm_config
    app.state.enable_server_load_tracking = False
    app.state.server_load_metrics = 0

    models = OpenAIServingModels(
        engine_client=engine, base_model_paths=[BaseModelPath(member.base_model_name, member.model_path)]
    )
    generations: dict[int, str | None] = {}
    member.adapters = Adapters(engine, member.adapter_name, models.lora_requests, generations)
    renderer = OnlineRenderer(
        model_config=engine.model_config,
        renderer=engine.renderer,
        request_logger=None,
        chat_template=None,
        chat_template_content_format="auto",
        enable_auto_tools=member.tool_parser is not None,
        tool_parser=member.tool_parser,
    )
    chat = ArtChat(
        engine,
        models,
        "assistant",
        online_renderer=renderer,
        request_logger=None,
        chat_template=None,
        chat_template_content_format="auto",
        enable_auto_tools=member.tool_parser is not None,
        tool_parser=member.tool_parser,
    )
    completion = ArtCompletion(engine, models, online_renderer=renderer, request_logger=None)
    chat.generations = completion.generations = generations
    app.state.openai_serving_models = models
    app.state.openai_serving_chat = chat
    app.state.openai_serving_completion = completion
    app.state.online_renderer = renderer

    attach_models(app)
    attach_chat(app)
    attach_completion(app)
    init_exception_handler(app)
    _answer_for_a_dead_engine(app, member)
    _add_administration(app, member)
    app.add_middleware(_Guard, member=member)
    return app


def _error(status: int, kind: str, message: str, **more: Any) -> JSONResponse:
    return JSONResponse(
        {"error": {"message": message, "type": kind, "code": status, **more}}, status_code=status
    )


def _answer_for_a_dead_engine(app: FastAPI, member: Member) -> None:
    @app.exception_handler(EngineDeadError)
    async def dead(_request: Request, _error_: EngineDeadError) -> Response:
        try:
            async with asyncio.timeout(_FAILURE_WAIT_S):
                await member.failed.wait()
        except TimeoutError:
            return _error(503, "EngineDead", "the engine core does not answer any more")
        return _error(503, "EngineDead", member.failure or "the engine core died")


def _add_administration(app: FastAPI, member: Member) -> None:
    @app.get("/health")
    async def health() -> Response:
        state, detail = member.health()
        return JSONResponse({"health": state, "detail": detail}, status_code=200 if state == "ready" else 503)

    @app.get("/art/state")
    async def state() -> Response:
        health_, detail = member.health()
        active = member.adapters.active
        return JSONResponse(
            {
                "health": health_,
                "detail": detail,
                "version": active.version if active else None,
                "digest": active.digest if active else None,
                "pid": os.getpid(),
            }
        )

    @app.post("/art/activate")
    async def activate(request: Request) -> Response:
        deadline_s = float(request.query_params["deadline_s"])
        try:
            done = await member.adapters.activate(await request.body(), deadline_s)
        except ActivationFailedError as error:
            return _error(409, "ActivationFailed", str(error), in_doubt=error.in_doubt)
        return JSONResponse(
            {
                "version": done.version,
                "digest": done.digest,
                "wait_ms": done.wait_ms,
                "pause_ms": done.pause_ms,
                "read_ms": done.read_ms,
            }
        )

    @app.post("/art/quarantine")
    async def quarantine(request: Request) -> Response:
        member.adapters.doubt = (await request.body()).decode(errors="replace")
        return JSONResponse({})

    @app.post("/art/trace")
    async def trace() -> Response:
        return JSONResponse(await member.engine.collective_rpc("art_trace"))


class _Guard:
    """Tokens, and no inference while it is in doubt what would answer."""

    def __init__(self, app: ASGIApp, member: Member) -> None:
        self._app = app
        self._member = member

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        path, member = scope["path"], self._member
        if path.startswith("/art/"):
            if not _carries(scope, member.admin_token):
                return _error(401, "Unauthorized", "this needs the administration token of this launch")
        elif path.startswith("/v1/"):
            if member.api_key is not None and not _carries(scope, member.api_key):
                return _error(401, "Unauthorized", "this needs the API key of the model service")
            if member.adapters.doubt is not None:
                return _error(503, "Quarantined", member.adapters.doubt)
        return None


def _carries(scope: Scope, token: str) -> bool:
    given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    return hmac.compare_digest(given, b"Bearer " + token.encode())
