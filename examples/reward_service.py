"""A reward service: `pip install antiphon` (no torch), then `python examples/reward_service.py`."""

from length_ratio import length_ratio_reward

from antiphon.services.reward import serve_reward

if __name__ == "__main__":
    serve_reward(length_ratio_reward, port=50061)
