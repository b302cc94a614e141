"""What authentication costs: StreamTransport beside a bare socket between the same two processes."""
