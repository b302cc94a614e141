"""The demo's rollout, against a server that writes down what it is asked."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import art
from art.demo import task
from art.demo.yes_no_maybe.train import rollout


class Server(ThreadingHTTPServer):
    """Answers every chat completion with ``answer``."""

    answer: str | None = "Maybe."

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[dict] = []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self.server.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        message = {"role": "assistant", "content": self.server.answer}
        choice = {"index": 0, "finish_reason": "stop", "message": message, "art": "a token record"}
        body = json.dumps(
            {
                "id": "1",
                "object": "chat.completion",
                "created": 1,
                "model": "policy",
                "choices": [choice],
                "usage": {"prompt_tokens": 40, "completion_tokens": 3, "total_tokens": 43},
            }
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def model(server: Server) -> art.TrainableModel:
    return art.TrainableModel(
        name="m",
        project="p",
        base_model="none",
        inference_base_url=f"http://127.0.0.1:{server.server_port}/v1",
        inference_api_key="key",
        inference_model_name="policy",
    )


async def test_it_asks_once_with_the_scenario_s_seed_and_keeps_the_choice(server: Server, model) -> None:
    trajectory = await rollout(model, task.Scenario("Reply yes, no or maybe.", 7), task.SAMPLING)
    (request,) = server.requests
    assert request["messages"] == [{"role": "user", "content": "Reply yes, no or maybe."}]
    assert (request["model"], request["max_tokens"], request["temperature"], request["seed"]) == (
        "policy",
        8,
        1.0,
        7,
    )
    assert trajectory.reward == 1.0
    assert trajectory.metadata == {"prompt": "Reply yes, no or maybe.", "answer": "Maybe."}
    assert trajectory.messages_and_choices[-1].model_extra == {"art": "a token record"}


async def test_an_empty_answer_is_worth_nothing(server: Server, model) -> None:
    server.answer = None
    trajectory = await rollout(model, task.Scenario("Reply yes, no or maybe.", 7), task.SAMPLING)
    assert (trajectory.reward, trajectory.metadata["answer"]) == (0.0, "")
