"""text-generation-inference's published OpenAPI document as JSON schemas to validate against."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

DOCUMENT = Path(__file__).with_name("openapi.json")


class Contract:
    """Validates what goes to and comes from a server."""

    def __init__(self) -> None:
        document = _without_nullable(json.loads(DOCUMENT.read_text()))
        self._document = document
        self._components = {"components": document["components"]}

    def problem_of_request(self, path: str, body: Any) -> str:
        """What is wrong with the body of a POST; empty for nothing."""
        content = self._document["paths"][path]["post"]["requestBody"]["content"]
        schema = content["application/json"]["schema"]
        problem = self._problem(schema, body)
        known = self._components["components"]["schemas"]["GenerateParameters"]["properties"]
        if not problem and (unknown := sorted(set(body.get("parameters") or {}) - set(known))):
            return f"unknown parameters {unknown}"
        return problem

    def problem_of_answer(self, method: str, path: str, status: int, body: Any) -> str:
        """What is wrong with an answer; empty for nothing."""
        answers = self._document["paths"][path][method]["responses"]
        if str(status) not in answers:
            return f"status {status}, which {path} never answers"
        content = answers[str(status)].get("content", {}).get("application/json")
        return self._problem(content["schema"], body) if content else ""

    def _problem(self, schema: Any, value: Any) -> str:
        errors = Draft202012Validator({**schema, **self._components}).iter_errors(value)
        return "; ".join(f"{error.json_path}: {error.message}" for error in errors)


def _without_nullable(node: Any) -> Any:
    """OpenAPI 3.0 marks what may be null; JSON schema has a type for it."""
    if isinstance(node, list):
        return [_without_nullable(item) for item in node]
    if not isinstance(node, dict):
        return node
    plain = {key: _without_nullable(value) for key, value in node.items() if key != "nullable"}
    return {"anyOf": [plain, {"type": "null"}]} if node.get("nullable") is True else plain
