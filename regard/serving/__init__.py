"""Models behind an address: `regard serve FOLDER`.

    routes.py     the table of what can be asked: path, fields of a request, what answers it
    requests.py   the fields of requests, typed
    engine.py     one thread that computes; requests wait in its queue and are computed together
    app.py        from HTTP to the table and back
    server.py     the process: loads in the background, listens, drains

Imported by the command alone: it needs starlette and uvicorn (`pip install 'regard[serve]'`).
"""
