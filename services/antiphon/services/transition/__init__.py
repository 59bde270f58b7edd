"""The transition service: a user's function that writes the next prompts."""

from antiphon.services.common.user_functions import END, End
from antiphon.services.transition.serving import serve_transition, transition_server

__all__ = ["END", "End", "serve_transition", "transition_server"]
