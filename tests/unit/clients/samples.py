"""Values of every type that crosses the wire."""

from antiphon.clients.types import (
    AgentAction,
    ChatMessage,
    Completion,
    FinishReason,
    GenerateRequest,
    JointAction,
    Phase,
    PromptSamples,
    PushHeader,
    PushKind,
    SamplingParameters,
    Score,
    ScoredJointAction,
    Task,
    TensorDtype,
    TensorSpec,
    TokenIds,
    WeightsSpan,
)

CHAT = (ChatMessage("system", "Be brief."), ChatMessage("user", "Où ? 🏙"))

TASK = Task("t", {"prompt": "p", "n": 2**70, "nested": [{"a": None}, [1.5, True]]})

JOINT_ACTION = JointAction(
    id="j",
    task_id="t",
    turn=2,
    phase=Phase.EVAL,
    attempt=3,
    actions=(AgentAction("p0", "c0"), AgentAction(CHAT, "")),
    history=((AgentAction("h0", "d0"), AgentAction("h1", "d1")),),
)

SCORE = Score("j", 0.25, components={"length": -1.0}, info={"note": "é", "seen": [1]})
MISSING = Score("j", None, "the judge is away")
SCORED = ScoredJointAction(JOINT_ACTION, SCORE)

GENERATE_REQUEST = GenerateRequest(
    run_id="r",
    incarnation=2,
    agent=1,
    min_weights_version=4,
    prompts=(
        PromptSamples("text", (0, 2**64 - 1)),
        PromptSamples(CHAT, (1,)),
        PromptSamples(TokenIds((5, 0, 70000)), (2, 3, 4)),
    ),
    sampling=SamplingParameters(0.5, 50, 0.5, 64),
    include_full_logprobs=True,
)

# Every float is one that float32 holds.
COMPLETION = Completion(
    prompt_index=2,
    sample_index=1,
    text="hé 🏙",
    token_ids=(7, 8, 2),
    logprobs=(-0.5, -0.25, 0.0),
    kept_sizes=(50, 3, 1),
    finish_reason=FinishReason.END_TOKEN,
    prompt_token_ids=(1, 2),
    weights_spans=(WeightsSpan(0, 4), WeightsSpan(2, 5)),
    instance_id="i",
    boot_id="b",
    full_logprobs=(-1.5, -2.0, -0.125),
    full_logprobs_temperature_1=(-1.0, -1.0, -1.0),
)

HEADER = PushHeader(
    run_id="r",
    incarnation=1,
    agent=0,
    version=7,
    digest=b"d" * 32,
    kind=PushKind.FULL,
    tensors=(
        TensorSpec("a.weight", TensorDtype.BFLOAT16, (2, 3), b"c" * 16),
        TensorSpec("b", TensorDtype.FLOAT32, (), b"e" * 16),
    ),
)
