"""The server around the answers: who is served, clients that leave, steps that break, and the end."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from server.harness import WAIT_S, Gate, Served, nothing_is_held, serving

from freehold.impl.serving.server import bind
from freehold.spec.errors import InvalidInput, RuleBroken

LONG_CONTEXT = {"max_context_tokens": 4096, "num_pages": 1024}
LONG_TOKENS = 4000
POLL_S = 0.01


@pytest.fixture
def served() -> Iterator[Served]:
    with serving(**LONG_CONTEXT) as served:
        yield served


def stream(served: Served, **fields: Any) -> Any:
    body = {"prompt": "a", "stream": True, "max_tokens": LONG_TOKENS, "ignore_eos": True, **fields}
    return served.client.stream("POST", "/v1/completions", json=body)


def in_background(served: Served, **fields: Any) -> tuple[threading.Thread, list[httpx.Response]]:
    """A completion that another thread waits for, and where its response goes."""
    responses: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: responses.append(served.post(**fields)))
    thread.start()
    return thread, responses


def test_health_models_and_owners_of_an_idle_server(served: Served) -> None:
    assert served.client.get("/health").json() == {"status": "ok"}
    (card,) = served.client.get("/v1/models").json()["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == ("counting", "model", 4096)
    assert served.client.get("/v1/models/counting").json() == card
    owners = served.client.get("/kv/owners").json()
    assert owners["pages"] == {
        "total": 1024, "free": 1024, "prefix_tree": 0, "requests": 0, "sessions": 0, "in_flight": 0,
        "locked": 0,
    }  # fmt: skip
    assert (owners["rows"], owners["owners"], owners["conflicts"]) == ({"total": 16, "free": 16, "bound": 0}, [], [])


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/nope", 404), ("GET", "/v1/completions", 405), ("GET", "/v1/models/x", 404)]
)
def test_an_error_of_http_is_an_error_object_too(served: Served, method: str, path: str, status: int) -> None:
    response = served.client.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_the_owners_of_a_running_request_and_a_session(served: Served) -> None:
    def turn(engine: Any) -> None:
        engine.open_session("talk")
        engine.submit([1] * 5, session_id="talk", max_new_tokens=2)

    served.loop.call(turn).result(timeout=WAIT_S)
    served.wait_until_idle()
    gate = Gate()
    served.executor.before = gate
    thread, responses = in_background(served, prompt=[9] * 10, max_tokens=3)
    gate.wait_until_entered()
    gate.let_through(1)
    gate.wait_until_entered()
    answer: dict[str, Any] = {}
    asking = threading.Thread(target=lambda: answer.update(served.client.get("/kv/owners").json()))
    asking.start()
    gate.let_through(1)  # the call is answered behind this step or a later one
    gate.let_through(1)
    asking.join(timeout=WAIT_S)
    thread.join(timeout=WAIT_S)
    assert responses[0].json()["choices"][0]["text"] == "\n\x0b\x0c"
    pages = answer["pages"]
    assert pages["total"] == sum(pages[name] for name in ("free", "prefix_tree", "requests", "sessions", "in_flight"))
    (session,) = [owner for owner in answer["owners"] if owner["kind"] == "session"]
    assert (session["id"], session["owned"], session["committed_tokens"]) == ("talk", "1-2", 6)
    assert pages["sessions"] == 2


def test_a_client_that_leaves_a_stream_gives_everything_back(served: Served) -> None:
    gate = Gate()
    served.executor.before = gate
    gate.let_through(2)
    with stream(served) as response:
        lines = (line for line in response.iter_lines() if line)
        assert '"text":"b"' in next(lines)
        assert '"text":"c"' in next(lines)
    gate.wait_until_entered()
    gate_until_idle(served, gate)


def test_a_client_that_leaves_a_whole_answer_gives_everything_back(served: Served) -> None:
    gate = Gate()
    served.executor.before = gate
    body = {"prompt": ["a", "b"], "max_tokens": LONG_TOKENS, "ignore_eos": True}
    with pytest.raises(httpx.ReadTimeout):
        served.client.post("/v1/completions", json=body, timeout=httpx.Timeout(WAIT_S, read=0.2))
    gate_until_idle(served, gate)


def test_an_answer_that_a_stop_string_ended_gives_everything_back(served: Served) -> None:
    gate = Gate()
    served.executor.before = gate
    gate.let_through(20)
    body = {"prompt": ["a", "p"], "max_tokens": LONG_TOKENS, "stop": "rs", "ignore_eos": True}
    choices = served.post(**body).json()["choices"]
    assert [choice["text"] for choice in choices] == ["bcdefghijklmnopq", "q"]
    gate_until_idle(served, gate)


def gate_until_idle(served: Served, gate: Gate) -> None:
    """Let steps through, fewer than the answer would take, until no request is live because nobody wants it."""
    for _ in range(LONG_TOKENS // 2):
        busy = served.loop.call(lambda engine: engine.busy)
        gate.let_through(1)
        if not busy.result(timeout=WAIT_S):
            assert served.owners().owners == []
            return
        time.sleep(POLL_S)  # for the server to see that the connection has closed
    raise AssertionError("the request went on for nobody")


def test_a_failing_forward_step_fails_its_requests_and_no_others(served: Served) -> None:
    def break_down(batch: object) -> None:
        raise ValueError("no more memory")

    served.executor.before = break_down
    response = served.post(prompt="a")
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert "no more memory" in response.json()["error"]["message"]
    assert "no more memory" in served.events("a")[-1]["error"]["message"]
    served.executor.before = lambda batch: None
    assert served.client.get("/health").status_code == 200
    assert served.text("a", max_tokens=2) == "bc"


@pytest.mark.parametrize("error", [RuleBroken("page 3 has two owners"), ZeroDivisionError("page 3 has two owners")])
def test_a_broken_step_stops_the_engine_and_says_so(error: Exception) -> None:
    with serving() as served:
        gate = Gate()
        served.executor.before = gate
        thread, responses = in_background(served, prompt="a", max_tokens=9)
        gate.wait_until_entered()
        gate.let_through(1)
        gate.wait_until_entered()

        def broken() -> Any:
            raise error

        served.engine.step = broken  # type: ignore[method-assign]
        gate.let_through(1)
        thread.join(timeout=WAIT_S)
        assert responses[0].status_code == 500
        assert "page 3 has two owners" in responses[0].json()["error"]["message"]
        health = served.client.get("/health")
        assert health.status_code == 503
        assert "page 3 has two owners" in health.json()["reason"]
        refused = served.post(prompt="b")
        assert refused.status_code == 503
        assert refused.json()["error"]["type"] == "service_unavailable"
        assert len(served.client.get("/kv/owners").json()["owners"]) == 1
        assert served.loop.failure is not None


def test_stopping_without_grace_ends_answers_with_an_error_and_holds_nothing() -> None:
    with serving(grace_s=0, **LONG_CONTEXT) as served:
        gate = Gate()
        served.executor.before = gate
        gate.let_through(1)
        with stream(served) as response:
            lines = (line for line in response.iter_lines() if line)
            assert '"text":"b"' in next(lines)
            served.server.should_exit = True
            while served.loop.unable is None:
                gate.let_through(1)
                time.sleep(POLL_S)
            rest = list(lines)
        assert "shutting down" in rest[-2]
        assert rest[-1] == "data: [DONE]"
        served.stop()
        assert nothing_is_held(served.engine)
        assert served.loop.unable is not None


def test_stopping_with_grace_lets_answers_finish() -> None:
    with serving(grace_s=WAIT_S) as served:
        gate = Gate()
        served.executor.before = gate
        thread, responses = in_background(served, prompt="a", max_tokens=5)
        gate.wait_until_entered()
        served.server.should_exit = True
        gate.let_through(1000)
        thread.join(timeout=WAIT_S)
        assert responses[0].json()["choices"][0]["text"] == "bcdef"
        served.stop()
        assert nothing_is_held(served.engine)


def test_an_address_that_is_taken_is_refused() -> None:
    with bind("127.0.0.1", 0) as first:
        first.listen()
        with pytest.raises(InvalidInput, match="another --host or --port"):
            bind("127.0.0.1", first.getsockname()[1])
    with pytest.raises(InvalidInput, match="cannot listen"):
        bind("no.such.host.invalid", 0)
    with pytest.raises(InvalidInput, match="cannot listen"):
        bind("127.0.0.1", 99999)
