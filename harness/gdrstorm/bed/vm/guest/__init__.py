"""What runs inside the guest: init (shell), the agent (standard library) and their wire format."""
