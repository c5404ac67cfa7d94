"""Prompts of chat models: messages written out by the Jinja template of a published folder."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from regard.errors import ConfigError


class _Replies(Extension):
    """`{% generation %}` marks what a model is trained on; a prompt has it as it is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def prompt_of(
    template: str, messages: Sequence[Mapping[str, str]], special_tokens: Mapping[str, str]
) -> str:
    """The prompt that ends where the reply to the messages begins, as `transformers` makes it.

    special_tokens: by their names in templates: {"bos_token": "<s>"}

    Raises:
        ConfigError: the template is malformed, or refuses the messages.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Replies, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.globals |= {"raise_exception": _refuse, "strftime_now": datetime.now().strftime}
    try:
        compiled = environment.from_string(template)
        return compiled.render(special_tokens, messages=messages, add_generation_prompt=True)
    except (TemplateError, TypeError) as error:
        raise ConfigError(f"The chat template of the model's folder: {error}") from error


def _refuse(problem: str) -> None:
    raise TemplateError(problem)
