"""Prompts of chat models, compared with `transformers`."""

import json

import pytest
from transformers import AutoTokenizer

from regard.errors import ConfigError
from regard.text import Tokenizer

TURNS = [
    {"role": "user", "content": 'Who "sat"? \n é'},
    {"role": "assistant", "content": " the cat "},
    {"role": "user", "content": "where"},
]
SYSTEM = {"role": "system", "content": "Be brief."}
TEMPLATES = {
    "marks": """{% for message in messages %}
    {%- if loop.first and message.role != 'system' %}{{ '<|system|>\nYou help.</s>\n' }}{% endif %}
{{ '<|' + message['role'] + '|>\n' + message['content'] | trim + eos_token + '\n' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}""",
    "instructions": """{{ bos_token }}{% for message in messages %}
{% if message.role == 'system' %}{{ raise_exception('No system message is known.') }}{% endif %}
{% if message.role == 'user' %}[INST] {{ message.content }} [/INST]{% continue %}{% endif %}
{% generation %} {{ message.content }}{{ eos_token }}{% endgeneration %}{% endfor %}""",
    "json": """{% set ns = namespace(n=0) %}{% for message in messages %}{% set ns.n = ns.n + 1 %}
{{ ns.n }}:{{ message | tojson }}{{ sep_token }}{% endfor %}{{ tools or 'no tools' }}""",
}


@pytest.fixture
def folder(tmp_path):
    texts = ["who sat the cat where be brief you help <|user|> <|assistant|> [INST]"] * 3
    tokenizer = Tokenizer.train(texts, "byte-bpe", 300).with_roles({"bos": "<s>", "eos": "</s>"})
    tokenizer.save(tmp_path)
    return tmp_path


def with_template(folder, template):
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": template}))
    return folder


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("messages", [TURNS, [SYSTEM, *TURNS], TURNS[:1]])
def test_prompts_and_ids_are_those_of_transformers(folder, tmp_path, name, messages):
    named = [{"name": "rag", "template": "no"}, {"name": "default", "template": TEMPLATES[name]}]
    tokenizer = Tokenizer.load(with_template(folder, named if name == "json" else TEMPLATES[name]))
    theirs = AutoTokenizer.from_pretrained(folder)
    if name == "instructions" and SYSTEM in messages:
        with pytest.raises(ConfigError, match="No system message is known"):
            tokenizer.apply_chat_template(messages)
        return
    options = {"add_generation_prompt": True, "return_dict": False}
    prompt = tokenizer.apply_chat_template(messages)
    assert prompt == theirs.apply_chat_template(messages, tokenize=False, **options)
    assert tokenizer.encode(prompt).ids == theirs.apply_chat_template(messages, **options)


def test_the_template_is_saved_and_a_file_of_its_own_comes_first(folder, tmp_path):
    (with_template(folder, "old") / "chat_template.jinja").write_text(TEMPLATES["marks"])
    tokenizer, saved = Tokenizer.load(folder), tmp_path / "saved"
    saved.mkdir()
    (saved / "chat_template.jinja").write_text("of a model that was there")
    tokenizer.with_special_tokens(["<new>"]).save(saved)
    expected = tokenizer.apply_chat_template(TURNS)
    assert Tokenizer.load(saved).apply_chat_template(TURNS) == expected
    options = {"add_generation_prompt": True, "tokenize": False}
    assert AutoTokenizer.from_pretrained(saved).apply_chat_template(TURNS, **options) == expected
