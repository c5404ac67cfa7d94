"""Models over HTTP: `regard serve FOLDER`, a FastAPI application under uvicorn.

    routes.py     the table of routes: path, fields of a request, what computes it
    requests.py   the fields of requests
    engine.py     one thread that computes; waiting requests are computed together
    app.py        the application
    server.py     the process: loads in the background, listens, drains

Imported by the command alone: it needs fastapi and uvicorn (`pip install 'regard[serve]'`).

Internal: names that `regard` itself does not have may change with every version.
"""
