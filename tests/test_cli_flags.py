"""No flag of a command is ignored: each changes what the command gives, or is an error."""

from __future__ import annotations

import hashlib
import shutil
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


def flags_of(words: list[str], values: dict[str, str]) -> dict[str, list[str]]:
    """The words of each flag of a command, by its name, but for those that are given.

    words: the command, and what is given.
    """
    flags, command = {}, get_command(app)
    while words[0] in getattr(command, "commands", ()):
        command, words = command.commands[words[0]], words[1:]
    for option in command.params:
        names = option.secondary_opts or option.opts
        for name in names if option.param_type_name == "option" else ():
            if not name.startswith("--") or name in words:
                continue
            number = {"N": 1, "NUMBER": 0.5}.get(option.metavar, "x")
            flags[name] = [name] if option.is_flag else [name, str(values.get(name, number))]
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

    flags, plain = flags_of(base, VALUES), gives()
    assert plain[0] == 0 and len(flags) > 3
    alone = {flag: gives(*flags[flag]) for flag in flags}
    ignored = {flag for flag, given in alone.items() if given == plain}
    assert ignored <= UNSEEN
    working = [flag for flag, given in alone.items() if given[0] == 0 and flag not in UNSEEN]
    for one, other in [*combinations(working, 2)][:30]:
        both = gives(*flags[one], *flags[other])
        assert both[0] or both != plain, (one, other)


# ------------------------------------------------------------- commands that write, or serve

# The words of each command, and the values of its flags.
WRITING = {
    "train": ("small.toml", "--out=made --device=cpu --devices=2"),
    "serve": (
        "model",
        "--host=::1 --port=1 --api-key-file=key --max-queued-tokens=5 --timeout=3 --quantize=int8 "
        "--prefix-cache=0 --texts=texts.csv --labels=label --index=index --device=cpu --task=tree "
        "--model-type=elmo",
    ),
    "export": ("model --to ctranslate2", "--out=made --quantize=int8"),
    "tokenizer train": (
        "texts.csv --columns text --out made --vocab-size 50",
        "--kind=characters --unicode-form=nfkc",
    ),
    "tokenizer encode": ("model Acat", ""),
    "tokenizer explain": ("model Acat", "--words=ab:7 --merges=1 --kind=bpe"),
}
# What changes nothing, as the reference says: a dry run writes nothing, and has no progress; a
# computer without a GPU computes on its CPU; nothing is there that would be replaced.
SAYS = {"--dry-run": {"--out", "--quiet"}}
NOTHING_TO_DO = {"train": {"--device"}, "export": {"--force"}, "tokenizer train": {"--force"}}
FILES = {
    "small.toml": """
task = "translation"
data = {train = ["texts.csv"], valid = ["texts.csv"], columns = ["text", "label"]}
tokenizer = {kind = "characters"}
model = {name = "transformer", size = "tiny", d_model = 16}
training = {max_steps = 1}
""",
    "texts.csv": "text,label\n" + "The old ﬁsh sat,A\na cat ran oﬀ,B\n" * 8,
    "key": "secret",
    "index/index.json": "{}",
}


@pytest.mark.parametrize("command", WRITING)
def test_each_flag_of_a_command_that_writes_changes_what_is_written(
    folders, tmp_path, monkeypatch, command
):
    given, values = WRITING[command]
    base = [*command.split(), *given.split()]
    opened = lambda *args, **options: (*map(str, args), options)  # noqa: E731
    monkeypatch.setattr("regard.cli.serve.load_task", opened)
    monkeypatch.setattr("regard.cli.serve.load_index", opened)
    monkeypatch.setattr("regard.serving.server.run", served)

    def gives(*more: str) -> tuple[int, str, bool, list[str]]:
        """The exit code, what is printed, and the files that are there, weights with digests."""
        where = tmp_path / f"{len([*tmp_path.iterdir()])}"
        shutil.copytree(folders["language-modeling-gpt2"], where / "model")
        for name, text in FILES.items():
            (where / name).parent.mkdir(exist_ok=True)
            (where / name).write_text(text)
        monkeypatch.chdir(where)
        run = CliRunner().invoke(app, [*base, *more])
        assert run.exit_code in (0, 2), (more, run.output)
        files = [path for path in sorted(where.rglob("*")) if path.is_file()]
        exact = (".safetensors", "tokenizer.json", "model.bin")
        written = [
            f"{path.relative_to(where)} "
            + (hashlib.md5(path.read_bytes()).hexdigest() if path.name.endswith(exact) else "")
            for path in files
        ]
        return run.exit_code, run.stdout, bool(run.stderr), written

    flags, plain = flags_of(base, dict(word.split("=", 1) for word in values.split())), gives()
    assert plain[0] == 0
    alone = {flag: gives(*flags[flag]) for flag in flags}
    ignored = {flag for flag in flags if alone[flag] == plain}
    assert ignored == NOTHING_TO_DO.get(command, set())
    working = [flag for flag in flags if alone[flag][0] == 0 and flag not in ignored]
    for one, other in combinations(working, 2):
        if other in SAYS.get(one, ()) or one in SAYS.get(other, ()):
            continue
        both = gives(*flags[one], *flags[other])
        assert both[0] or both not in (alone[one], alone[other]), (one, other)


def served(folders, load, options, say, sources):
    """What a server is started with."""
    print(options, {name: load(folder) for name, folder in folders.items()})
    print(sources and vars(sources.maps))
