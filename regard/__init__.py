"""Regard: every sequence model between the LSTM and GPT, in one small package.

The names here are the public ones; everything below them may change from version to version. They
are imported when first used: `import regard` loads neither torch nor numpy.
"""

from typing import TYPE_CHECKING

__version__ = "1.0.0rc1"

if TYPE_CHECKING:  # type checkers and editors read these; tests/test_public_names.py compares
    from regard.errors import CheckpointError as CheckpointError
    from regard.errors import ConfigError as ConfigError
    from regard.errors import DataError as DataError
    from regard.errors import MissingExtra as MissingExtra
    from regard.errors import NotSupportedError as NotSupportedError
    from regard.errors import RegardError as RegardError
    from regard.experiments.compare import compare as compare
    from regard.experiments.compare import cross_validate as cross_validate
    from regard.experiments.results import StudyResults as StudyResults
    from regard.experiments.runs import Run as Run
    from regard.experiments.runs import resume as resume
    from regard.experiments.runs import train as train
    from regard.experiments.sweep import sweep as sweep
    from regard.exporting import Exported as Exported
    from regard.exporting import export as export
    from regard.serving.server import serve as serve
    from regard.sharded.driver import predict_files as predict_files
    from regard.sharded.parts import FileResults as FileResults
    from regard.tasks import ListedModel as ListedModel
    from regard.tasks import list_models as list_models
    from regard.tasks.folders import evaluate as evaluate
    from regard.tasks.folders import load as load
    from regard.tasks.folders import quantize as quantize
    from regard.tasks.folders import save as save
    from regard.tasks.search_index import mine_negatives as mine_negatives
    from regard.tasks.search_index import search as search
    from regard.text.tokenizer import Tokenizer as Tokenizer
    from regard.training.interrupt import Interrupted as Interrupted
    from regard.visual.attention_record import AttentionRecord as AttentionRecord
    from regard.visual.attention_record import look as look
else:  # a `__getattr__` that a type checker sees would hide misspelled names from it
    from regard.lazy import names_of

    __all__, __getattr__ = names_of(
        __name__,
        {
            "errors": "CheckpointError ConfigError DataError MissingExtra NotSupportedError "
            "RegardError",
            "experiments.compare": "compare cross_validate",
            "experiments.results": "StudyResults",
            "experiments.runs": "Run resume train",
            "experiments.sweep": "sweep",
            "exporting": "Exported export",
            "serving.server": "serve",
            "sharded.driver": "predict_files",
            "sharded.parts": "FileResults",
            "tasks.folders": "evaluate load quantize save",
            "tasks.search_index": "mine_negatives search",
            "tasks": "ListedModel list_models",
            "text.tokenizer": "Tokenizer",
            "training.interrupt": "Interrupted",
            "visual.attention_record": "AttentionRecord look",
        },
    )

    def __dir__() -> list[str]:
        return __all__
