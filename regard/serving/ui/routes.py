"""What the views of the page ask for by POST: one line each, besides the routes of tasks."""

from __future__ import annotations

from regard.serving.guards import PageGuard
from regard.serving.page_files import page_files
from regard.serving.routes import CAT, ROUTES, Route, has_attention, reads_images
from regard.serving.served_page import ServedPage
from regard.serving.ui import attention, cells, decoding_steps, regions, requests, tokenization
from regard.serving.ui.sources import UISources
from regard.serving.work import work_maker

UI_ROUTES = {
    route.path: route
    for route in (
        Route(
            "/ui/tokens",
            "The steps in which the words of a text become tokens.",
            "",
            requests.ShownTexts,
            work_maker(tokenization.tokenization_steps),
            {"texts": CAT},
        ),
        Route(
            "/ui/attention",
            "Small maps of the attention of all heads while a text is read.",
            "",
            requests.AttentionOfAll,
            work_maker(attention.small_maps),
            {"texts": CAT},
            has_attention,
        ),
        Route(
            "/ui/head",
            "The attention weights of one head, or the mean of a layer's heads.",
            "",
            requests.AttentionOfHead,
            work_maker(attention.one_head),
            {"texts": CAT, "kind": "encoder", "layer": 1, "head": 1},
            has_attention,
        ),
        Route(
            "/ui/masked_heads",
            "The answer to a text with all heads, and with some of them masked.",
            "",
            requests.MaskedHeads,
            work_maker(attention.answers_with_masked_heads),
            {"texts": CAT, "masked_heads": [{"kind": "encoder", "layer": 1, "head": 1}]},
            has_attention,
        ),
        Route(
            "/ui/next",
            "The most probable next tokens, before and after temperature, top-k and top-p.",
            "",
            requests.NextTokens,
            work_maker(decoding_steps.next_tokens),
            {"texts": CAT, "temperature": 0.8, "top_k": 10},
            decoding_steps.decodes_texts,
        ),
        Route(
            "/ui/beam",
            "Every token that a beam search tries, as a tree.",
            "",
            requests.BeamSearch,
            work_maker(decoding_steps.beam_searches),
            {"texts": CAT, "beams": 3},
            decoding_steps.decodes_texts,
        ),
        Route(
            "/ui/cell",
            "A text coloured by one cell of a recurrent model, and the model's layers.",
            "",
            requests.OneCell,
            work_maker(cells.one_cell),
            {"texts": CAT, "layer": 1, "number": 1},
            cells.has_cells,
        ),
        Route(
            "/ui/cells",
            "The cells of a recurrent model that follow properties of a text most closely.",
            "",
            requests.CellSearch,
            work_maker(cells.found_cells),
            {"texts": 'The cat said: "I sat on the mat (in the sun)."', "properties": "text"},
            cells.has_cells,
        ),
        Route(
            "/ui/regions",
            "What each word of the description of an image attends to, over the image.",
            "",
            requests.OneImage,
            work_maker(regions.pictures_of_regions),
            {"images": "iVBORw0KGgo="},
            reads_images,
        ),
    )
}


def ui_page(sources: UISources | None = None) -> ServedPage:
    """The page, and what it asks besides the routes of tasks.

    sources: the files that the command names.
    """
    sources = sources or UISources()
    return ServedPage(
        {**ROUTES, **UI_ROUTES}, page_files(), PageGuard, sources.routes(), sources.prepare
    )
