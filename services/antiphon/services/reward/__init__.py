"""The reward service: a user's function that scores joint actions, behind `RewardService`."""

from antiphon.services.reward.serving import reward_server, serve_reward

__all__ = ["reward_server", "serve_reward"]
