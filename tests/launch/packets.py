"""Packets that no rank sends."""

import json
import pickle

NO_MESSAGES = [
    pickle.dumps(["alive"]), b"{", b"3", b'"text"', b"null", b"[]", b"[" * 60_000, b'["at"' + b" " * 70_000 + b"]",
    *(json.dumps(content).encode() for content in [
        {"kind": "ended", "rank": [0], "status": 3}, ["ended", 0], ["refused"], ["refused", ["why"]], ["refused", None],
        ["at", "computing", "1"], ["at", 1, 1], ["at", "computing", -1], ["at", "computing", 1.5], [["at"], "x", 1],
        ["at", "computing", 10**400], ["alive", 1], ["bar", "x", 1, 10**20, ""], ["bar", "x", 1], ["bar", {}, 1, 2, ""],
    ]),
]  # fmt: skip
