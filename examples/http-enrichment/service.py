"""A service to try it with: `python service.py`. It knows two customers, and refuses now and then."""

from itertools import count

from aiohttp import web

COUNTRIES = {"ada": "GB", "bob": "US"}
_calls = count()


async def customer(request: web.Request) -> web.StreamResponse:
    """Answer with the country; drop every third connection."""
    if next(_calls) % 3 == 1 and request.transport is not None:
        request.transport.close()
    name = request.match_info["name"]
    if name not in COUNTRIES:
        raise web.HTTPNotFound
    return web.json_response({"country": COUNTRIES[name]})


def app() -> web.Application:
    """Return the application."""
    made = web.Application()
    made.router.add_get("/customers/{name}", customer)
    return made


if __name__ == "__main__":
    web.run_app(app(), host="127.0.0.1", port=8099)
