"""Measures the engine itself on this host, against a server that tells the truth about its own sends.

`measure.measure` is one measurement, `limit.find_limit` looks for the highest load at which the verdict
stays ok, `render` shows both. The command is `agentx-engine bench`.
"""
