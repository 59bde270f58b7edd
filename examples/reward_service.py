"""A reward service; the base install (without torch) is enough.

python examples/reward_service.py [PORT]
"""

import sys

from length_ratio import length_ratio_reward

from antiphon.services.reward import serve_reward

if __name__ == "__main__":
    serve_reward(length_ratio_reward, port=int(sys.argv[1]) if len(sys.argv) > 1 else 50061)
