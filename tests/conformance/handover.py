"""The command that the conformance suite starts: `handover.py PORT URL`, with the scenario in MCP_CONFORMANCE_SCENARIO.

It hands the scenario to the tests at that port, prints what they answer, and fails if that is an error.
"""

import json
import os
import socket
import sys

scenario, context = os.environ["MCP_CONFORMANCE_SCENARIO"], os.environ.get("MCP_CONFORMANCE_CONTEXT", "")
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as tests:
    tests.sendall(json.dumps({"url": sys.argv[2], "scenario": scenario, "context": context}).encode() + b"\n")
    said = tests.makefile().read()
sys.exit(said or None)
