"""One view per module, each a function from a `ViewContext` to a `RenderedView`."""
