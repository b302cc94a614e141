"""Reading a segment of another process: NixlTransport beside NIXL alone."""
