"""vLLM's server as we start it: it serves, answers nobody else, comes back once, and says why it does not."""

import httpx

from mcp_rl.inference.vllm.server import VllmServer


async def test_a_prompt_of_ids_comes_back_as_ids_with_their_logprobs(vllm_server: VllmServer) -> None:
    body = {"model": "mcp-rl/tiny", "prompt": [5, 6, 7], "max_tokens": 4, "logprobs": 1, "return_token_ids": True}
    async with vllm_server.client(timeout=60) as client:
        answer = await client.post("/v1/completions", json=body)
    choice = answer.json()["choices"][0]
    assert len(choice["token_ids"]) == len(choice["logprobs"]["token_logprobs"]) == 4
    assert vllm_server.max_context == 2048
    assert vllm_server.starts == 1


async def test_nothing_but_health_is_answered_without_the_key(vllm_server: VllmServer) -> None:
    async with httpx.AsyncClient(base_url=vllm_server.url) as client:
        assert (await client.get("/health")).status_code == 200
        for path in ("/v1/models", "/metrics", "/collective_rpc", "/invocations", "/adapters", "/openapi.json"):
            assert (await client.post(path)).status_code == 401, path
            wrong = {"Authorization": f"Bearer {vllm_server.api_key[:-1]}"}
            assert (await client.post(path, headers=wrong)).status_code == 401, path
