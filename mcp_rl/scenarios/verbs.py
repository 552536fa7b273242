"""Verbs with which names and descriptions of tools begin, so that they can stand in a request."""

# ruff: noqa: SIM905 - lists of words are read as words

from __future__ import annotations

_DESCRIBING = (
    "add analyze append apply archive assign build calculate cancel check clear close compare "
    "complete compute configure convert copy count create decode delete describe detect determine "
    "disable display divide download draw edit enable encode estimate evaluate execute explain "
    "explore export extract fetch filter find format generate get give identify import indicate "
    "initialize insert inspect list load look make measure merge move multiply open parse "
    "perform predict print process produce provide query read record remove rename render replace "
    "report reset resolve restore retrieve return roll round run save schedule search select send set "
    "show simulate solve sort split start stop store submit subtract suggest sum summarize switch "
    "take tell test transform translate unstage update upload validate verify view visualize write"
).split()
THIRD_PERSON = {f"{verb}s": verb for verb in _DESCRIBING} | {
    "echoes": "echo",
    "fetches": "fetch",
    "processes": "process",
    "searches": "search",
    "switches": "switch",
}
"""Verbs as descriptions of tools begin, such as "returns", with the form that asks for it."""
VERBS = frozenset(_DESCRIBING) | frozenset(
    "accept activate adjust allocate approve ask assess backup begin block book borrow bring browse "
    "buy call change choose clean click clone collect combine commit complain confirm connect "
    "continue cut deactivate decrease decrypt define deliver deploy diff discard do draft drop "
    "duplicate earn echo eject empty encrypt end enter erase escalate evict examine expand favorite "
    "fill finish flip focus forget fork gather go grant greet guess hash help hide ignore increase "
    "index infer inform ingest install introspect invert invite invoke join judge jump keep kill "
    "label lend link log login logout lookup lower map mark match mention mix modify monitor mute "
    "name navigate notify order organize pack paste patch pause pay pick pin place plan play post "
    "prepare preview profile promote prune publish pull purchase push put quit quote raise rank rate "
    "reach reactivate rebuild recall receive recommend redo refresh register reject release reload "
    "remember reopen reorder repeat reply request require reschedule reserve respond restart resume "
    "retry reveal reverse revert review revise revoke rotate scan scrape screenshot scroll see seed "
    "sell separate share shift shorten shuffle sign skip sleep snooze speak spell stage stash stream "
    "stringify subscribe swap sync synchronize tag talk toggle touch trace track trade transcribe "
    "transfer transpose trigger trim truncate try turn unarchive undo uninstall unlink unlock unpin "
    "unsubscribe untag upgrade upsert use vote wait wake walk warn watch withdraw wrap".split()
)
"""Verbs that ask for something: "scan folder" is a request, "text stats" is none."""
EITHER_WAY = frozenset(
    "add addition gcd hypotenuse lcm max maximum mean min minimum multiplication multiply plus sum times".split()
)
BESIDE_SUMS = frozenset("get calculate compute find two numbers integers values of the and".split())
"""Words that name a tool whose two numbers may change places, and words that may stand beside them: `get_sum`."""
