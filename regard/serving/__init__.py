"""Models over HTTP: `regard serve FOLDER`.

    routes.py     the table of routes: path, fields of a request, the function that answers
    requests.py   the fields of requests, typed
    engine.py     one thread that computes; waiting requests are computed together
    app.py        from HTTP to the table and back
    server.py     the process: loads in the background, listens, drains

Imported by the command alone: it needs starlette and uvicorn (`pip install 'regard[serve]'`).

Internal: names that `regard` itself does not have may change with every version.
"""
