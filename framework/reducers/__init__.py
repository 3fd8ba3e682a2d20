"""The reducers that come with the framework, besides the writers in `framework.sinks`."""
