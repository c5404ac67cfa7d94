"""The routes that the views of the page use: those of `regard serve --ui` besides those of tasks.

    routes.py    the fields of requests, and the table: one line a route, as in
                 `regard.serving.routes`
    views.py     functions of a task, items and options, with one plain value an item, which
                 `regard.serving.work.work_maker` makes work of the engine

docs/how-to/web-ui.md describes how a view is added.
"""
