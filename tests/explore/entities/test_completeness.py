"""A listing that says that there is more is not taken for all of it."""

import pytest

from mcp_rl.explore.entities.completeness import says_more


@pytest.mark.parametrize(
    "text",
    [
        '{"page": 1, "total_pages": 4, "contacts": []}',
        "Contacts (page 1 of 5):\nAda",
        "Showing 1-10 of 52 results",
        '{"count": 1302, "next": "https://example.com/?page=2", "results": []}',
        '{"items": [], "nextPageToken": "abc"}',
        '{"items": [], "next_page_token": "abc"}',
        '{"totalItems": 40, "items": []}',
        '{"numFound": 40, "docs": []}',
        '{"values": [], "isLast": false}',
        "Ada\nOmar\n… and 42 others",
        "Ada\nOmar\n(3 more)",
        '{"has_more": true}',
        '{"data": [], "total": 11}',
    ],
)
def test_a_page_of_a_listing_says_so(text: str) -> None:
    assert says_more(text, 10)


@pytest.mark.parametrize(
    "text",
    [
        '{"page": 1, "total_pages": 1, "contacts": []}',
        "Page 1 of 1",
        "Showing 10 of 10 notes",
        '{"count": 10, "next": null, "previous": null}',
        '{"items": [], "nextPageToken": ""}',
        '{"total": 10}',
        '{"isLast": true}',
        "Ada likes 3 more books than Omar",
    ],
)
def test_a_whole_listing_says_nothing_of_more(text: str) -> None:
    assert not says_more(text, 10)
