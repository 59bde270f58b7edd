"""What a generation service samples from is what the learner trains: checked over the wire."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tests.e2e import reference
from tests.support.processes import Processes
from transformers import AutoModelForCausalLM, AutoTokenizer

from antiphon.clients.generation import GenerationClient
from antiphon.clients.types import (
    Completion,
    GenerateRequest,
    PromptSamples,
    SamplingParameters,
    TensorDtype,
)
from antiphon.learner.arithmetic.samples import TrainedCompletion, TrainingSample
from antiphon.learner.policy.policy import Policy, PolicySettings
from antiphon.learner.weights.publisher import AgentPublisher
from antiphon.learner.weights.replicas import Replica, Replicas, RunIdentity

PROMPTS = ("a red cat", "two dog replies b c", "again")
NEW_TOKENS = 10
FREE = SamplingParameters(1.0, None, None, NEW_TOKENS)
GREEDY = SamplingParameters(0.0, None, None, NEW_TOKENS)


@dataclass
class Agent:
    """A policy, its service and what is between them."""

    policy: Policy
    publisher: AgentPublisher
    client: GenerationClient
    identity: RunIdentity

    async def sample(
        self, sampling: SamplingParameters, prompts: Sequence[str] = PROMPTS, *, samples: int = 1
    ) -> list[list[Completion]]:
        """[prompts][samples] under the version published last."""
        request = GenerateRequest(
            self.identity.run_id,
            self.identity.incarnation,
            0,
            self.publisher.version,
            tuple(
                PromptSamples(prompt, tuple(range(100 * i, 100 * i + samples)))
                for i, prompt in enumerate(prompts)
            ),
            sampling,
        )
        rows: list[dict[int, Completion]] = [{} for _ in prompts]
        async for completion in self.client.generate(request, timeout=60):
            rows[completion.prompt_index][completion.sample_index] = completion
        return [[row[i] for i in range(samples)] for row in rows]


@dataclass
class Served:
    """A generation service that any run may take at once, and the folder of its model."""

    address: str
    folder: Path


@pytest.fixture(scope="module", params=[True, False], ids=["tied head", "untied head"])
def served(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    tiny_folders: Callable[..., Path],
) -> Iterator[Served]:
    """Starts from architecture and tokenizer only; the weights are pushed."""
    folder = tiny_folders(seed=4, tie=request.param, add_bos=True, two_ends=True)
    with Processes(tmp_path_factory.mktemp("served")) as processes:
        options = ("--model", str(folder), "--no-weights", "--run-lease", "0")
        service = processes.serve("generation", "generation", *options)
        yield Served(service.address(), folder)


@asynccontextmanager
async def first_push(
    served: Served, run: str, dtype: TensorDtype, learning_rate: float = 0.0
) -> AsyncIterator[Agent]:
    """A policy of the folder's model, published for the first time."""
    model = AutoModelForCausalLM.from_pretrained(served.folder)
    settings = PolicySettings(
        temperature=1.0, max_new_tokens=NEW_TOKENS, learning_rate=learning_rate
    )
    policy = Policy(0, model, settings, wire_dtype=dtype)
    client = GenerationClient(served.address)
    identity = RunIdentity(run, 1)
    replicas = Replicas([Replica(served.address, client)])
    publisher = AgentPublisher(identity, 0, policy.wire_weights(), replicas, timeout=60)
    try:
        await publisher.publish()
        yield Agent(policy, publisher, client, identity)
    finally:
        await client.close()


def alternating(group: Sequence[Completion]) -> TrainingSample:
    """A group whose completions are worth 1, -1, 1, …"""
    completions = tuple(
        TrainedCompletion(c.token_ids, c.logprobs, c.kept_sizes, sign, sign)
        for c, sign in zip(group, itertools.cycle((1.0, -1.0)), strict=False)
    )
    return TrainingSample(
        0, 1, "task", 0, (), group[0].prompt_token_ids, completions, False, 0.0, 0.0, 1
    )


def greedy(policy: Policy, folder: Path) -> list[list[int]]:
    """What transformers' own generate makes of the learner's model."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    outputs = []
    for prompt in PROMPTS:
        inputs = tokenizer(prompt, return_tensors="pt")
        output = policy.model.generate(  # type: ignore[operator]
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
        )
        outputs.append(output[0, inputs["input_ids"].shape[1] :].tolist())
    return outputs


@pytest.mark.parametrize("dtype", list(TensorDtype))
async def test_after_every_push_greedy_output_is_that_of_the_learners_model(
    served: Served, dtype: TensorDtype
) -> None:
    seen = []
    async with first_push(served, f"greedy-{dtype}", dtype, learning_rate=5e-2) as agent:
        for _ in range(3):
            came = await agent.sample(GREEDY)
            assert [list(row[0].token_ids) for row in came] == greedy(agent.policy, served.folder)
            seen.append([row[0].token_ids for row in came])
            groups = await agent.sample(FREE, samples=4)
            agent.policy.step([alternating(group) for group in groups])
            await agent.publisher.publish()
    assert len(set(map(tuple, seen))) == 3, (
        "the steps changed no output, so the pushes were not seen"
    )


async def test_log_probabilities_of_engine_and_learner_agree_whatever_the_sampling(
    served: Served,
) -> None:
    """L7, L11: one distribution on both sides; no token has to be forced into the kept set."""
    async with first_push(served, "logprobs", TensorDtype.FLOAT32) as agent:
        vocabulary = (await agent.client.get_model_info(timeout=10)).vocabulary_size
        model = agent.policy.model.double()
        for temperature, top_k, top_p in itertools.product((1.0, 0.6), (None, 7), (None, 0.6)):
            sampling = SamplingParameters(temperature, top_k, top_p, NEW_TOKENS)
            settings = reference_settings(sampling)
            groups = await agent.sample(sampling, samples=6)
            for completion in itertools.chain.from_iterable(groups):
                with torch.no_grad():
                    expected, forced = reference.logprobs(model, completion, settings)
                came = torch.tensor(completion.logprobs, dtype=torch.float64)
                assert forced == 0
                assert (came - expected).abs().max() < 1e-4
                if top_k is None and top_p is None:
                    assert set(completion.kept_sizes) == {vocabulary}
                elif top_p is None:
                    assert set(completion.kept_sizes) == {top_k}
                else:
                    assert max(completion.kept_sizes) <= (top_k or vocabulary)


def reference_settings(sampling: SamplingParameters) -> reference.Settings:
    return reference.Settings(
        num_turns=1,
        num_generations=1,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        discount=1.0,
        threshold=None,
        learning_rate=0.0,
        buffer_size=1,
    )
