"""Whether a prompt leaves room for a completion."""

from __future__ import annotations


def misfit(agent: int, prompt_tokens: int, max_new_tokens: int, context_length: int) -> str:
    """Why a prompt leaves no room for a whole completion; empty where it does."""
    if prompt_tokens + max_new_tokens <= context_length:
        return ""
    return (
        f"agent {agent}: a prompt of {prompt_tokens} tokens and max_new_tokens {max_new_tokens} "
        f"exceed the {context_length} tokens that its services and its model take"
    )
