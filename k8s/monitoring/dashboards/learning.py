"""What the policies learn: returns, groups, steps, and whether learner and engine agree."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard
from k8s.monitoring.dashboards.parts import (
    AGENT,
    RATE,
    TURN,
    Query,
    board,
    graph,
    heat,
    rate,
    select,
)

OF_AGENT = "agent {{agent}}"


def dashboard() -> Dashboard:
    """The dashboard."""
    return board(
        "Learning",
        "What the policies learn, by turn and agent, and whether their steps are sound.",
        {
            "Rewards and returns": _rewards(),
            "Groups": _groups(),
            "Optimiser steps": _steps(),
            "Learner and engine": _agreement(),
        },
        variables=("agent", "turn"),
    )


def of_agent(title: str, description: str, unit: str, metric: str, **options: object) -> object:
    """A gauge of the learner by agent."""
    query = Query(select(f"antiphon_learner_{metric}", AGENT), OF_AGENT)
    return graph(title, description, unit, query, **options)  # type: ignore[arg-type]


def _rewards() -> list[object]:
    both = "turn {{turn}}, agent {{agent}}"
    return [
        heat(
            "Rewards",
            "How many joint actions had which reward, after the reward processor.",
            "none",
            Query(
                f"sum by (le) (increase({select('antiphon_learner_reward_bucket', TURN)}[{RATE}]))",
                "{{le}}",
            ),
        ),
        graph(
            "Expected return by agent",
            "Mean of the returns that each agent was trained on. Agents differ where completions "
            "are crossed, or where a reference KL is taken off the returns.",
            "none",
            Query(select("antiphon_learner_agent_expected_return", TURN, AGENT), both),
            low=None,
        ),
        graph(
            "Evaluation",
            "Mean reward and return of the last evaluation's tasks.",
            "none",
            Query(select("antiphon_learner_eval_reward_mean", TURN), "reward, turn {{turn}}"),
            Query(select("antiphon_learner_eval_expected_return", TURN), "return, turn {{turn}}"),
            low=None,
        ),
        graph(
            "Reference KL",
            "Mean distance from the reference, summed over a completion's tokens. What grows "
            "without end drifts from what the model could do before.",
            "none",
            Query(select("antiphon_learner_reference_kl_mean", TURN, AGENT), both),
            low=None,
        ),
        of_agent(
            "Reference KL in the loss",
            "What the distance from the reference adds to the loss; with reference_kl_mode loss.",
            "none",
            "reference_kl_loss",
            low=None,
        ),
        graph(
            "Missing rewards",
            "Joint actions without a reward, per second by why: no score, one that is not finite, "
            "or the reward processor's None.",
            "none",
            Query(
                f"sum by (reason) ({rate('antiphon_learner_missing_rewards_total')})", "{{reason}}"
            ),
        ),
        graph(
            "Joint actions",
            "Joint actions made and scored, per second by turn.",
            "none",
            Query(
                f"sum by (turn) ({rate('antiphon_learner_joint_actions_total', TURN)})",
                "turn {{turn}}",
            ),
        ),
    ]


def _groups() -> list[object]:
    return [
        of_agent(
            "Advantage spread",
            "Largest minus smallest advantage of a group, mean of a batch's live groups.",
            "none",
            "advantage_spread",
        ),
        graph(
            "Groups that teach nothing, by why",
            "Share of groups without a signal: no difference between their returns, or fewer than "
            "two returns.",
            "percentunit",
            Query(
                f"sum by (agent, reason) ({rate('antiphon_learner_dead_groups_total', AGENT)}) "
                "/ on (agent) group_left "
                f"sum by (agent) ({rate('antiphon_learner_groups_total', AGENT)})",
                "agent {{agent}}, {{reason}}",
            ),
            high=1,
            steps=[(None, "green"), (0.5, "orange"), (0.9, "red")],
        ),
        graph(
            "Steps and tokens",
            "Optimiser steps per minute by agent. None: every group is dead.",
            "none",
            Query(
                f"60 * sum by (agent) ({rate('antiphon_learner_optimizer_steps_total', AGENT)})",
                OF_AGENT,
            ),
        ),
    ]


def _steps() -> list[object]:
    return [
        of_agent("Loss", "Loss of the last optimiser step.", "none", "loss", low=None),
        of_agent("Gradient norm", "Before clipping, of the last step.", "none", "grad_norm"),
        of_agent("Learning rate", "Of the last step.", "sci", "learning_rate"),
        of_agent(
            "Entropy",
            "Of the sampling distribution, mean over tokens. Near 0 nothing new is sampled, so "
            "groups die.",
            "none",
            "entropy_nats",
        ),
        of_agent(
            "Importance ratio",
            "Mean of policy now over policy sampled. It is 1 on the first step after a publish.",
            "none",
            "importance_ratio_mean",
            low=None,
        ),
        of_agent(
            "Clipped tokens",
            "Share of tokens whose gradient the clip took. Above a fifth: fewer steps per batch, "
            "or a lower learning rate.",
            "percentunit",
            "clipped_tokens_ratio",
            high=1,
            steps=[(None, "green"), (0.2, "orange")],
        ),
    ]


def _agreement() -> list[object]:
    return [
        of_agent(
            "Staleness",
            "Most publishes between the weights that a node of the last batch was sampled from and "
            "its training. At most max_staleness, while its minibatch fills more.",
            "none",
            "staleness_max",
        ),
        of_agent(
            "Truncated tokens",
            "Share of tokens whose importance ratio was above the cap; only with max_staleness.",
            "percentunit",
            "truncated_tokens_ratio",
            high=1,
            steps=[(None, "green"), (0.2, "orange")],
        ),
        of_agent(
            "Log-probability gap, mean",
            "Difference between learner and engine for the same tokens. Float error only on the "
            "first step after a publish; what stays large is a bug or a stale replica.",
            "none",
            "logprob_gap_mean",
            steps=[(None, "green"), (0.1, "red")],
        ),
        of_agent(
            "Log-probability gap, largest",
            "The largest such difference in the last step.",
            "none",
            "logprob_gap_max",
        ),
        graph(
            "Forced tokens",
            "Sampled tokens that the learner's own kept set (top-k, top-p) had left out, as a "
            "share of those trained on. Rounding only, so well under a hundredth.",
            "percentunit",
            Query(
                f"sum by (agent) ({rate('antiphon_learner_forced_tokens_total', AGENT)}) / "
                f"sum by (agent) ({rate('antiphon_learner_trained_tokens_total', AGENT)})",
                OF_AGENT,
            ),
            steps=[(None, "green"), (0.01, "orange")],
        ),
    ]
