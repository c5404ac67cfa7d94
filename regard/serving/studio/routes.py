"""What the views of the page ask for by POST: one line each, beside the routes of tasks."""

from __future__ import annotations

from regard.serving.guards import PageGuard
from regard.serving.page_files import page_files
from regard.serving.routes import CAT, ROUTES, Route
from regard.serving.served_page import ServedPage
from regard.serving.studio import requests, tokenization
from regard.serving.work import by

STUDIO_ROUTES = {
    route.path: route
    for route in (
        Route(
            "/studio/tokens",
            "The steps in which the words of a text become tokens.",
            "",
            requests.ShownTexts,
            by(tokenization.explained),
            {"texts": CAT},
        ),
    )
}


def studio_page() -> ServedPage:
    """The page, and the routes that it asks beside those of tasks."""
    return ServedPage({**ROUTES, **STUDIO_ROUTES}, page_files(), PageGuard)
