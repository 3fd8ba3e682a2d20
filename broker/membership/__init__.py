"""Consumer groups as pure state machines: no wire, no disk, no event loop."""
