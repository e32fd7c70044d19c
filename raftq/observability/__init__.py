"""What a running node says of itself: logs and metrics. Never part of any decision.

Embedded use configures nothing global: loggers are the standard library's, named ``raftq.*``,
without handlers; `raftq node` installs one (`logs.configure`).
"""
