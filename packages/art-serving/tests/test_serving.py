"""What a running member answers: token records, versions, errors."""

import asyncio

import numpy as np
import openai
import pytest

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROMPT = [10, 20, 30, 40, 50, 60, 70]


async def test_a_model_that_is_not_served_is_unknown_and_the_engine_lives_on(openai_client, record_of):
    with pytest.raises(openai.NotFoundError, match="stranger"):
        await openai_client.completions.create(model="stranger", prompt=PROMPT, max_tokens=3)
    answer = await openai_client.completions.create(model="tiny", prompt=PROMPT, max_tokens=3)
    assert record_of(answer.choices[0]).prompt_ids.tolist() == PROMPT


async def test_log_probs_of_the_base_model_are_those_of_transformers(openai_client, record_of, reference):
    answer = await openai_client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=40, temperature=0.7, seed=3, extra_body={"ignore_eos": True}
    )
    record = record_of(answer.choices[0])
    assert record.prompt_ids.tolist() == PROMPT
    assert [(s.start, s.end, s.version) for s in record.completion_spans] == [(0, 40, 0)]
    assert (record.temperature, record.truncated_sampling) == (pytest.approx(0.7), False)
    np.testing.assert_allclose(record.logprobs, reference.logprobs(record), atol=2e-4)


async def test_activation_serves_the_adapter(service, snapshots, openai_client, record_of, reference):
    manifest = snapshots.make(1)
    report = await service.activate(manifest, 30)
    print(report)
    assert (report.version, report.digest) == (1, manifest.digest)
    answer = await openai_client.chat.completions.create(
        model="policy",
        messages=[{"role": "user", "content": "w11 w12 w13"}],
        max_tokens=24,
        temperature=0.7,
        n=3,
        extra_body={"ignore_eos": True},
    )
    records = [record_of(choice) for choice in answer.choices]
    assert len({tuple(record.completion_ids) for record in records}) == 3
    for record in records:
        assert [(s.start, s.end, s.version) for s in record.completion_spans] == [(0, 24, 1)]
        assert [(s.start, s.end, s.version) for s in record.prompt_spans] == [(0, len(record.prompt_ids), 1)]
        assert record.adapter_generation == "step-00000001-test"
        np.testing.assert_allclose(record.logprobs, reference.logprobs(record), atol=2e-4)


def spans(found):
    return [(span.start, span.end, span.version) for span in found]


async def traced(service, requests):
    """Runs ``requests`` while workers note what each engine step ran with; gives answers and notes."""
    admin = service._members[0].client
    await admin.trace(10)
    await admin.trace(10)
    answers = await requests
    (steps,) = await admin.trace(10)
    return answers, steps


def expected_versions(steps, request_id):
    """For each token of a request, in order, the version that its step ran with; for all engine requests of
    it.
    """
    computed = {}
    for version, counts in steps:
        for engine_id, count in counts.items():
            if request_id in engine_id:
                computed.setdefault(engine_id, []).extend([version] * count)
    return computed


def from_versions(versions):
    """Run lengths, written anew for the test."""
    found = []
    for index, version in enumerate(versions):
        if found and found[-1][2] == version:
            found[-1] = (found[-1][0], index + 1, version)
        else:
            found.append((index, index + 1, version))
    return found


async def test_base_model_and_policy_in_one_batch_are_each_themselves(
    service, snapshots, openai_client, record_of, reference
):
    await service.activate(snapshots.make(1), 30)

    async def ask(model, index):
        answer = await openai_client.completions.create(
            model=model, prompt=[*PROMPT, 100 + index], max_tokens=60, extra_body={"ignore_eos": True}
        )
        return record_of(answer.choices[0])

    records = await asyncio.gather(*(ask(model, index) for index in range(3) for model in ("tiny", "policy")))
    assert [record.completion_spans[0].version for record in records] == [0, 1] * 3
    for record in records:
        np.testing.assert_allclose(record.logprobs, reference.logprobs(record), atol=2e-4)


async def test_spans_of_a_generation_with_two_swaps_are_what_the_workers_ran(
    service, snapshots, openai_client, record_of, reference
):
    await service.activate(snapshots.make(2), 30)

    async def swaps():
        reports = []
        for version in (3, 4):
            await until(lambda: service.stats(), lambda stats: stats.running >= 6)
            before = (await service.stats()).generation_tokens
            await until(lambda: service.stats(), lambda stats, b=before: stats.generation_tokens > b + 200)
            reports.append(await service.activate(snapshots.make(version), 30))
        return reports

    async def requests():
        calls = [
            openai_client.completions.create(
                model="policy",
                prompt=[*PROMPT, 80 + index],
                max_tokens=300,
                n=2,
                temperature=0.9,
                extra_headers={"X-Request-Id": f"swapped{index}x"},
                extra_body={"ignore_eos": True},
            )
            for index in range(4)
        ]
        *answers, reports = await asyncio.gather(*calls, swaps())
        return answers, reports

    (answers, reports), steps = await traced(service, requests())
    assert [report.version for report in reports] == [3, 4]
    swapped = 0
    for index, answer in enumerate(answers):
        computed = expected_versions(steps, f"swapped{index}x")
        assert len(computed) == 2
        for number, choice in enumerate(answer.choices):
            record = record_of(choice)
            prompt_length = len(record.prompt_ids)
            (versions,) = [v for engine_id, v in computed.items() if engine_id.startswith(f"{number}_")]
            # Prompt tokens found in the prefix cache were not computed again; the rest of what was computed
            # are the last prompt tokens, then one step for each further completion token.
            sampling = versions[-300:]
            assert spans(record.completion_spans) == from_versions(sampling)
            assert spans(record.prompt_spans) == [(0, prompt_length, 2)]
            swapped += len(record.completion_spans) > 1
            if index == 0:
                np.testing.assert_allclose(record.logprobs, reference.logprobs(record), atol=5e-4)
    assert swapped == 8
    print([(r.pause_ms, r.members[0].wait_ms, r.members[0].read_ms, r.duration_ms) for r in reports])


async def until(read, holds, deadline_s=30.0):
    async with asyncio.timeout(deadline_s):
        while not holds(value := await read()):  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)
    return value


async def test_spans_of_prompts_that_were_being_read_at_the_swap(
    service, snapshots, openai_client, record_of, reference
):
    await service.activate(snapshots.make(5), 30)
    random = np.random.default_rng(0)
    length = 3000  # some 280 engine steps for all: enough to see one of the first on a busy machine
    prompts = [random.integers(6, 128, length).tolist() for _ in range(6)]

    async def requests():
        calls = [
            openai_client.completions.create(
                model="policy",
                prompt=prompt,
                max_tokens=4,
                extra_headers={"X-Request-Id": f"read{index}x"},
                extra_body={"ignore_eos": True},
            )
            for index, prompt in enumerate(prompts)
        ]
        before = (await service.stats()).steps

        async def swap():
            await until(lambda: service.stats(), lambda stats: stats.steps > before + 5)
            await service.activate(snapshots.make(6), 30)

        *answers, _ = await asyncio.gather(*calls, swap())
        return answers

    answers, steps = await traced(service, requests())
    mixed = []
    for index, answer in enumerate(answers):
        record = record_of(answer.choices[0])
        (versions,) = expected_versions(steps, f"read{index}x").values()
        assert spans(record.prompt_spans) == from_versions(versions[:length])
        assert spans(record.completion_spans) == from_versions(versions[length - 1 :])
        if len(record.prompt_spans) == 2:
            mixed.append(record)
    assert mixed
    np.testing.assert_allclose(mixed[0].logprobs, reference.logprobs(mixed[0]), atol=5e-4)


async def test_a_new_request_reuses_nothing_of_the_version_before(
    service, snapshots, openai_client, record_of
):
    await service.activate(snapshots.make(7), 30)
    prompt = [40 + index % 50 for index in range(320)]

    async def ask():
        before = await service.stats()
        answer = await openai_client.completions.create(
            model="policy", prompt=prompt, max_tokens=8, temperature=0, extra_body={"ignore_eos": True}
        )
        after = await service.stats()
        return record_of(answer.choices[0]), after.prefix_hits - before.prefix_hits

    first, first_hits = await ask()
    again, again_hits = await ask()
    assert first_hits == 0
    assert again_hits >= 256
    np.testing.assert_array_equal(first.completion_ids, again.completion_ids)
    assert spans(again.prompt_spans) == [(0, 320, 7)]
    await service.activate(snapshots.make(8), 30)
    after_swap, swap_hits = await ask()
    assert swap_hits == 0
    assert spans(after_swap.prompt_spans) == [(0, 320, 8)]
    assert not np.array_equal(after_swap.completion_ids, first.completion_ids)


@pytest.mark.parametrize("length", [20, 45, 64, 65, 90])
async def test_equal_prompts_are_computed_once_up_to_the_last_token(
    service, snapshots, openai_client, record_of, reference, length
):
    await service.activate(snapshots.make(5), 30)
    prompt = [6 + (7 * index + length) % 120 for index in range(length)]
    before = await service.stats()

    async def ask(name, seed, n):
        answer = await openai_client.completions.create(
            model="policy",
            prompt=prompt,
            max_tokens=30,
            temperature=0.8,
            seed=seed,
            n=n,
            extra_headers={"X-Request-Id": name},
            extra_body={"ignore_eos": True},
        )
        return [record_of(choice) for choice in answer.choices]

    records, steps = await traced(service, ask("together", 10, 8))
    computed = [len(versions) for versions in expected_versions(steps, "together").values()]
    # A completion's last token is not computed. One sample's prompt was, of the others its last token.
    assert sorted(count - 29 for count in computed) == [1] * 7 + [length]
    assert (await service.stats()).prefix_hits - before.prefix_hits == 7 * (length - 1)
    for record in records:
        assert spans(record.prompt_spans) == [(0, length, 5)]
        np.testing.assert_allclose(record.logprobs, reference.logprobs(record), atol=2e-4)
    # vLLM adds a sample's number to the seed. The first sample read the prompt, long ones in several steps.
    for index in (0, 3):
        (alone,) = await ask(f"alone{index}", 10 + index, 1)
        assert alone.completion_ids.tolist() == records[index].completion_ids.tolist()
        np.testing.assert_allclose(alone.logprobs, records[index].logprobs, atol=1e-4)


async def test_a_prompt_that_nobody_runs_any_more_is_computed_again(
    service, snapshots, openai_client, record_of, reference
):
    await service.activate(snapshots.make(6), 30)
    prompt = list(range(40, 60))

    async def ask(name):
        answer = await openai_client.completions.create(
            model="policy", prompt=prompt, max_tokens=3, extra_headers={"X-Request-Id": name}
        )
        return record_of(answer.choices[0])

    async def one_after_the_other():
        return [await ask("firstx"), await ask("secondx")]

    records, steps = await traced(service, one_after_the_other())
    for name, record in zip(("firstx", "secondx"), records, strict=True):
        (versions,) = expected_versions(steps, name).values()
        assert len(versions) == len(prompt) + len(record.completion_ids) - 1
        np.testing.assert_allclose(record.logprobs, reference.logprobs(record), atol=2e-4)


async def test_a_refused_snapshot_leaves_the_old_version_active(
    service, snapshots, openai_client, record_of, reference, tiny_model
):
    from art_serving import ActivationError, Health

    committed = snapshots.make(9)
    await service.activate(committed, 30)

    class Lease:
        def __init__(self, manifest):
            self.manifest = manifest
            self.released = 0

        def release(self):
            self.released += 1

    good = snapshots.make(10)
    tensors = adapter_of(snapshots, 10)
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    renamed = {key.replace("layers.1.", "layers.7."): value for key, value in tensors.items()}
    narrow = tensors | {f"{name}.lora_A.weight": tensors[f"{name}.lora_A.weight"][:, :64].copy()}
    half = {key: value for key, value in tensors.items() if key != f"{name}.lora_B.weight"}
    gone = snapshots.make(10)
    snapshots.store.drop(gone.location)
    cases = {
        "have digest": replaced(good, digest="00" * 32),
        "layers.7": snapshots.make(10, renamed),
        r"A \(8, 64\)": snapshots.make(10, narrow),
        "lacks its lora_B": snapshots.make(10, half),
        "is gone": gone,
        "rank": replaced(good, peft_config=good.peft_config.replace('"r": 8', '"r": 32')),
    }
    for message, manifest in cases.items():
        lease = Lease(manifest)
        with pytest.raises(ActivationError, match=message) as caught:
            await service.activate(manifest, 30, lease=lease)
        assert not caught.value.quarantined, message
        assert lease.released == 1
        state = await service.state()
        assert (state.health, state.version, state.members[0].version) == (Health.READY, 9, 9), state.detail
        assert state.members[0].digest == committed.digest
    answer = await openai_client.completions.create(model="policy", prompt=PROMPT, max_tokens=8)
    record = record_of(answer.choices[0])
    assert {span.version for span in record.completion_spans} == {9}
    np.testing.assert_allclose(record.logprobs, reference.logprobs(record), atol=2e-4)


def adapter_of(snapshots, version):
    from art_dataplane.snapshot import read_tensors

    with read_tensors(snapshots.make(version)) as mapped:
        return {
            name: np.frombuffer(item.data, "f4").reshape(item.shape).copy() for name, item in mapped.items()
        }


def replaced(manifest, **changes):
    import msgspec

    return msgspec.structs.replace(manifest, **changes)


async def test_sampling_that_is_not_from_the_whole_distribution_is_marked(openai_client, record_of):
    for options in (
        {"temperature": 0},
        {"top_p": 0.5},
        {"extra_body": {"top_k": 5}},
        {"frequency_penalty": 0.5},
    ):
        answer = await openai_client.completions.create(model="tiny", prompt=PROMPT, max_tokens=4, **options)
        record = record_of(answer.choices[0])
        assert record.truncated_sampling, options
        assert record.temperature == 1.0


async def test_a_client_that_asks_for_log_probs_gets_the_same_ones(openai_client, record_of):
    answer = await openai_client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=6, temperature=0.5, logprobs=2
    )
    choice = answer.choices[0]
    np.testing.assert_allclose(record_of(choice).logprobs, choice.logprobs.token_logprobs, atol=1e-6)


async def test_a_stop_string_ends_record_and_text_together(openai_client, record_of):
    free = await openai_client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=20, temperature=0, extra_body={"ignore_eos": True}
    )
    words = free.choices[0].text.split()
    answer = await openai_client.completions.create(
        model="tiny",
        prompt=PROMPT,
        max_tokens=20,
        temperature=0,
        stop=[words[5]],
        extra_body={"ignore_eos": True},
    )
    record = record_of(answer.choices[0])
    assert record.finish_reason == "stop"
    assert (
        record.completion_ids.tolist()
        == record_of(free.choices[0]).completion_ids[: len(record.completion_ids)].tolist()
    )
    assert len(record.completion_ids) <= 6


async def test_what_cannot_carry_a_record_is_refused(openai_client):
    with pytest.raises(openai.BadRequestError, match="streaming is not supported"):
        await openai_client.completions.create(model="tiny", prompt=PROMPT, max_tokens=4, stream=True)
    with pytest.raises(openai.BadRequestError, match="streaming is not supported"):
        await openai_client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "w9"}], max_tokens=4, stream=True
        )


async def test_a_request_whose_client_goes_away_is_not_computed_any_further(service, openai_client):
    request = asyncio.ensure_future(
        openai_client.completions.create(
            model="tiny", prompt=PROMPT, max_tokens=3000, extra_body={"ignore_eos": True}
        )
    )
    await until(service.stats, lambda stats: stats.running == 1)
    request.cancel()
    before = (await service.stats()).generation_tokens
    after = await until(service.stats, lambda stats: stats.unfinished == 0, 10)
    assert after.generation_tokens - before < 1500


async def test_tokens_are_asked_for(service):
    import aiohttp

    root = service.base_url.removesuffix("/v1")
    async with aiohttp.ClientSession() as session:
        for path, token, status in (
            ("/v1/models", None, 401),
            ("/v1/models", "wrong", 401),
            ("/v1/models", service.api_key, 200),
            ("/art/state", service.api_key, 401),
            ("/art/state", service._launch.admin_token.value, 200),
            ("/health", None, 200),
        ):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            async with session.get(root + path, headers=headers) as answer:
                assert answer.status == status, (path, token)
