"""Every view with the address it has on the server of these tests."""

VIEWS = {
    "overview": "/",
    "model": "/models/news?with=shop-2",
    "agents": "/models/news/agents",
    "agent": "/models/news/agents/shop-2",
    "events": "/models/news/events",
    "arms": "/models/offers/arms",
    "words": "/words#share",
    "api": "/docs",
    "login": "/login",
    "sign-in": "/sign-in",
}
