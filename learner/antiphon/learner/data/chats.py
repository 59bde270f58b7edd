"""Prompts as people write them: a text, or a chat, which is a list of messages.

A message is a dict with the texts ``role`` and ``content``. Inside, a chat is a tuple of
`ChatMessage`s; user code sees lists of dicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from antiphon.clients.types import Chat, ChatMessage, FieldError

WrittenChat = Sequence[Mapping[str, str] | ChatMessage]
WrittenPrompt = str | WrittenChat
"""What a dataset's column, a formatter or a transition may hold for one agent."""

_KEYS = ("role", "content")


def read_prompt(field: str, value: object) -> str | Chat:
    """A prompt that is not empty, as text or chat.

    Args:
        field: What errors call it.
        value: What came.

    Raises:
        FieldError: It is neither, it says nothing, or a message is not one.
    """
    if isinstance(value, str):
        if not value.strip():
            raise FieldError(field, repr(value), "a prompt that is not empty")
        return value
    if not isinstance(value, (list, tuple)):
        raise FieldError(
            field, f"{type(value).__name__} {value!r:.80}", "a text, or a list of chat messages"
        )
    chat = tuple(_message(f"{field}[{number}]", entry) for number, entry in enumerate(value))
    if not any(message.content.strip() for message in chat):
        raise FieldError(field, f"{value!r:.80}", "a chat with a message that is not empty")
    return chat


def messages_of(content: str | Chat) -> Chat:
    """The messages of a prompt; a text is one user message."""
    return (ChatMessage("user", content),) if isinstance(content, str) else content


def shown(content: object) -> str:
    """A prompt in one text for people: itself, or the contents of its messages by line."""
    if isinstance(content, (list, tuple)):
        parts = [m.get("content", "") if isinstance(m, Mapping) else m.content for m in content]
        return "\n".join(map(str, parts))
    return str(content)


def _message(field: str, entry: object) -> ChatMessage:
    if isinstance(entry, ChatMessage):
        entry = {"role": entry.role, "content": entry.content}
    wanted = 'a dict with the texts "role" and "content"'
    if not isinstance(entry, Mapping):
        raise FieldError(field, f"{type(entry).__name__} {entry!r:.80}", wanted)
    for key, value in entry.items():
        # Columns of tables hold every key that any row has: None stands for its absence.
        if key not in _KEYS and value is not None:
            raise FieldError(field, f"the key {key!r}", wanted)
    role, content = (entry.get(key) for key in _KEYS)
    if not isinstance(role, str) or not role or not isinstance(content, str):
        raise FieldError(field, f"{dict(entry)!r:.80}", wanted)
    return ChatMessage(role, content)
