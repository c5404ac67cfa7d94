"""The description of all routes for other programs, from the table of routes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import regard
from regard.serving.routes import GETS, Route
from regard.serving.served_page import RouteWithoutModel

REFERENCE = "#/components/schemas/{model}"
ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def openapi(routes: Mapping[str, Route | RouteWithoutModel]) -> dict[str, Any]:
    """OpenAPI 3.1 of these routes, and of what is asked by GET."""
    schemas: dict[str, Any] = {"Error": ERROR}
    paths: dict[str, Any] = {path: {"get": _get(summary)} for path, summary in GETS.items()}
    for path, route in routes.items():
        schema = route.request.model_json_schema(ref_template=REFERENCE)
        schemas |= schema.pop("$defs", {})
        schemas[route.request.__name__] = schema
        paths[path] = {"post": _post(route)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Regard", "version": regard.__version__},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _get(summary: str) -> dict[str, Any]:
    return {"summary": summary, "responses": {"200": {"description": "The answer."}}}


def _post(route: Route | RouteWithoutModel) -> dict[str, Any]:
    schema = {"$ref": REFERENCE.format(model=route.request.__name__)}
    error = {"application/json": {"schema": {"$ref": REFERENCE.format(model="Error")}}}
    return {
        "summary": route.summary,
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": schema, "example": route.example}},
        },
        "responses": {
            "200": {"description": "The answer.", "content": {"application/json": {}}},
            "default": {"description": "An error.", "content": error},
        },
    }
