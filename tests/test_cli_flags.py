"""No flag of a command is ignored: each changes what the command gives, or is an error."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import every_task
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from regard.cli import app

TEXT = "the old cat sat"
# Values of flags that differ from the defaults; others have one by their type.
VALUES = dict(
    word.split("=", 1)
    for word in (
        "--beams=3 --temperature=3.0 --top-p=0.5 --max-tokens=2 --stop=a --min-tokens=9 --layers=0 "
        "--no-repeat-ngram=1 --samples=2 --n-best=2 --seed=5 --top-k=3 --length-penalty=3 "
        "--max-length-a=0.1 --max-length-b=1 --combine=sum --pooling=max --granularity=word "
        "--kind=cross --quantize=int8 --precision=bfloat16 --token=old --cell=1:1 --mask-heads=1:1 "
        "--task=tree --model-type=elmo --device=cpu --too-long=truncate --answer=a --choices=a=b "
        "--template={text} --shard=1/2 --executor=slurm --format=txt --columns=text --delimiter=; "
        "--source-language=en --target-language=de"
    ).split()
)
# Flags that may change nothing: where a computation runs and how fast it is, what becomes of texts
# that are longer than those here, have subwords, or end early, and a layer of a model with one.
UNSEEN = {"--device", "--too-long", "--prompt-lookup-num-tokens"}
UNSEEN |= {"--tokens", "--min-tokens", "--layer"}
COMMANDS = {
    "predict": ("classification", ["MODEL", TEXT, "--json"]),
    "translate": ("translation", ["MODEL", TEXT, "--json"]),
    "tag": ("tagging", ["MODEL", TEXT, "--json"]),
    "generate": ("language-modeling-gpt2", ["MODEL", TEXT, "--json"]),
    "embed": ("embedding", ["MODEL", TEXT, "--json"]),
    "search": ("embedding", ["MODEL", TEXT, "a cat", "the sun", "mat", "who", "--json"]),
    "look": ("classification", ["MODEL", TEXT, "--json"]),
    "evaluate": ("language-modeling-gpt2", ["MODEL", "--data", "DATA", "--json"]),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    return every_task.make(tmp_path_factory.mktemp("tasks"))


def flags_of(command: str) -> dict[str, list[str]]:
    """The words of each flag of a command, by its name."""
    flags = {}
    for option in get_command(app).commands[command].params:
        for name in option.opts if option.param_type_name == "option" else ():
            if not name.startswith("--") or name in ("--json", "--data"):
                continue
            number = {"N": 1, "NUMBER": 0.5}.get(option.metavar, "x")
            flags[name] = [name] if option.is_flag else [name, str(VALUES.get(name, number))]
    return flags


@pytest.mark.parametrize("command", COMMANDS)
def test_each_flag_changes_the_result_or_is_an_error(folders, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(f"{TEXT}\n" * 9)
    name, words = COMMANDS[command]
    named = {"MODEL": str(folders[name]), "DATA": "text.txt"}
    base = [command, *(named.get(word, word) for word in words)]

    def gives(*more: str) -> tuple[int, str]:
        run = CliRunner().invoke(app, [*base, *more])
        assert run.exit_code in (0, 2), (more, run.output)
        return run.exit_code, run.stdout

    flags, plain = flags_of(command), gives()
    assert plain[0] == 0 and len(flags) > 3
    alone = {flag: gives(*flags[flag]) for flag in flags}
    ignored = {flag for flag, given in alone.items() if given == plain}
    assert ignored <= UNSEEN
    working = [flag for flag, given in alone.items() if given[0] == 0 and flag not in UNSEEN]
    for one, other in [*combinations(working, 2)][:30]:
        both = gives(*flags[one], *flags[other])
        assert both[0] or both != plain, (one, other)
